"""The functions of a user that a batch goes through, and what each of them is called with."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from enum import Enum
from inspect import Parameter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdata_insitu.errors import PlanError
from torchdata_insitu.nodes.sample_random import SampleRandom

__all__ = ["BatchTransforms", "TransformPlace"]

type Batch = dict[Any, Any]

RNG = "rng"


class _Call(Enum):
    """How a transform is called."""

    BATCH = "f(batch)"
    BY_PLACE = "f(batch, rng)"
    BY_NAME = "f(batch, rng=rng)"


class BatchTransforms:
    """Transforms in order; whether one takes random numbers is told from its signature, once.

    Args:
        transforms: each `f(batch) -> batch` or `f(batch, rng) -> batch`.

    Raises:
        PlanError: no sequence of callables, or one of which it cannot be told how to call it.

    Example:
        >>> def halve(batch):
        ...     return {"x": batch["x"] / 2}
        >>> def shift(batch, rng):
        ...     return {"x": batch["x"] + rng.integers(0, 10)}
        >>> transforms = BatchTransforms([halve, shift])
        >>> where = TransformPlace(seed=0, epoch=0, position=0)
        >>> transforms.apply({"x": torch.zeros(2)}, where, np.array([7, 7]))
        {'x': tensor([4., 4.])}
    """

    def __init__(self, transforms: Sequence[Callable[..., Any]]) -> None:
        """Look at the signatures; nothing is called."""
        if callable(transforms) or isinstance(transforms, str | bytes):
            msg = f"batch_transforms is {transforms!r}: give a list of functions"
            raise PlanError(msg)
        try:
            self.transforms = tuple(transforms)
        except TypeError:
            msg = (
                f"batch_transforms is {transforms!r} of type {type(transforms).__name__}: give a "
                "list of functions"
            )
            raise PlanError(msg) from None
        self._names = [
            f"batch transform {place} ({_name(transform)})"
            for place, transform in enumerate(self.transforms)
        ]
        self._calls = [
            _call_of(transform, name)
            for transform, name in zip(self.transforms, self._names, strict=True)
        ]

    def apply(self, batch: dict[str, Tensor], where: TransformPlace, samples: np.ndarray) -> Batch:
        """The batch after all transforms.

        Args:
            batch: fresh, and the transforms' own.
            where: which batch it is.
            samples: `(B,)` int64, the sample of each row.

        Raises:
            PlanError: a transform returned something else than a dictionary, or raised
                `StopIteration`, which a consumer would take for the end of the epoch.
            Exception: what a transform raised, with a note naming transform, epoch and position.
        """
        result: Any = batch
        for place, transform in enumerate(self.transforms):
            name, call = self._names[place], self._calls[place]
            try:
                if call is _Call.BATCH:
                    result = transform(result)
                else:
                    rng = SampleRandom(samples, seed=where.seed, epoch=where.epoch, place=place)
                    by_name = call is _Call.BY_NAME
                    result = transform(result, rng=rng) if by_name else transform(result, rng)
            except StopIteration as error:
                msg = f"{name} raised StopIteration {where}: let it return a batch or raise another"
                raise PlanError(msg) from error
            except Exception as error:
                note = f"in {name} {where}"
                if note not in getattr(error, "__notes__", ()):
                    error.add_note(note)
                raise
            if not isinstance(result, dict):
                what = "None" if result is None else f"a {type(result).__name__}"
                msg = f"{name} returned {what}: return the batch, a dictionary ({where})"
                raise PlanError(msg)
        batch_out: Batch = result
        return batch_out


class TransformPlace:
    """Which batch a transform is called with, for messages and random numbers."""

    def __init__(self, seed: int, epoch: int, position: int) -> None:
        """Take the seed of the plan and the place where the batch begins."""
        self.seed = seed
        self.epoch = epoch
        self.position = position

    def __str__(self) -> str:
        """The place as people read it."""
        return f"at position {self.position} of epoch {self.epoch}"


def _name(transform: Any) -> str:
    if isinstance(transform, functools.partial):
        return f"partial of {_name(transform.func)}"
    name: str = getattr(transform, "__qualname__", type(transform).__qualname__)
    return name


def _call_of(transform: Any, name: str) -> _Call:
    if not callable(transform):
        msg = f"{name} is {transform!r}, which cannot be called: give a function f(batch) -> batch"
        raise PlanError(msg)
    looked_at = transform
    if isinstance(transform, torch.nn.Module):
        # A module is called through a wrapper of any arguments, and so is the one inside a compiled
        # one; what it takes is said by `forward`.
        looked_at = getattr(transform, "_orig_mod", transform).forward
    try:
        signature = inspect.signature(looked_at)
    except (TypeError, ValueError):
        # Some built-in functions and types, such as `dict`, tell none. They know no rng.
        return _Call.BATCH
    parameters = list(signature.parameters.values())
    if isinstance(transform, functools.partial):
        # What was bound by name stays as it was bound.
        parameters = [found for found in parameters if found.name not in transform.keywords]
    return _call_by(parameters, f"{name} has the signature {signature}")


def _call_by(parameters: list[Parameter], subject: str) -> _Call:
    positional = [
        found
        for found in parameters
        if found.kind in {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
    ]
    named = next((found for found in parameters if found.name == RNG and not _is_rest(found)), None)
    advice = "define it as f(batch) or f(batch, rng)"
    if positional and positional[0].name == RNG:
        raise PlanError(f"{subject}, with rng first: {advice}")
    needed = [
        found
        for found in parameters
        if found.default is Parameter.empty and not _is_rest(found) and found is not named
    ]
    if positional and positional[0] in needed:
        needed.remove(positional[0])
    if named is None and any(found.kind is Parameter.VAR_POSITIONAL for found in parameters):
        raise PlanError(f"{subject}, from which it cannot be told whether it takes rng: {advice}")
    if not positional:
        raise PlanError(f"{subject}, which takes no batch: {advice}")
    if named is None and not needed:
        return _Call.BATCH
    if named is None and needed == positional[1:2]:
        return _Call.BY_PLACE
    if named is not None and not needed:
        if named.kind is not Parameter.POSITIONAL_ONLY:
            return _Call.BY_NAME
        if named is positional[1]:
            return _Call.BY_PLACE
    raise PlanError(f"{subject}, which needs more than a batch and rng: {advice}")


def _is_rest(parameter: Parameter) -> bool:
    return parameter.kind in {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
