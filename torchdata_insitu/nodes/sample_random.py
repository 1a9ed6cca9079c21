"""Random numbers for batch transforms that belong to samples, not to batches."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from torchdata_insitu.errors import PlanError
from torchdata_insitu.gather.counter_random import CounterRandom
from torchdata_insitu.planning.whole_number import whole_number

__all__ = ["SampleRandom"]

_FLOATS: dict[torch.dtype, np.dtype] = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
}
_INT64 = np.iinfo(np.int64)


class SampleRandom:
    """Random numbers for the rows of one batch, which a transform `f(batch, rng)` is given.

    Row `j` of what a call returns depends only on the seed, the epoch, the `sample_index` of row
    `j`, the number of the call within the transform, and the place of the transform. It is the same
    whatever the batch size, the rank, the place of the sample in its batch and the prefetch depth,
    and after a resume. Copies in a padded batch get the numbers of their sample.

    A transform that asks for more or fewer numbers depending on the values of a batch shifts the
    number of the calls that follow: ask for all first, then choose.

    Args:
        sample_index: `(B,)` whole numbers, the sample of each row.
        seed: of the plan.
        epoch: number of the epoch.
        place: of the transform, counted from 0 over all batch transforms.

    Raises:
        PlanError: rows that are no whole numbers, or arguments of a call that make no sense.

    Example:
        >>> import torchdata_insitu as tdi
        >>> def add_noise(batch, rng):
        ...     x = batch["x"]
        ...     batch["x"] = x + rng.normal(std=0.1, shape=x.shape[1:])
        ...     return batch
        >>> batch = {"x": torch.zeros(2, 3)}
        >>> noisy = add_noise(batch, tdi.SampleRandom([8, 3], seed=0, epoch=0))["x"]
        >>> batch = {"x": torch.zeros(1, 3)}
        >>> alone = add_noise(batch, tdi.SampleRandom([3], seed=0, epoch=0))["x"]
        >>> torch.equal(noisy[1], alone[0])
        True
    """

    def __init__(
        self,
        sample_index: Tensor | np.ndarray | Sequence[int],
        *,
        seed: int,
        epoch: int,
        place: int = 0,
    ) -> None:
        """Stand before the first call."""
        samples = np.asarray(
            sample_index.cpu() if isinstance(sample_index, Tensor) else sample_index
        )
        if samples.ndim != 1 or (samples.size and samples.dtype.kind not in "iu"):
            msg = (
                f"sample_index is of type {samples.dtype} and shape {samples.shape}: one whole "
                "number a row is needed"
            )
            raise PlanError(msg)
        self._samples = samples.astype(np.int64)
        self._key = (
            whole_number("seed", seed),
            whole_number("epoch", epoch),
            whole_number("place", place),
        )
        self._random = CounterRandom("batch transform", *self._key)
        self._n_calls = 0

    def __repr__(self) -> str:
        """Rows and key."""
        seed, epoch, place = self._key
        return (
            f"SampleRandom({len(self._samples)} samples, seed={seed}, epoch={epoch}, place={place})"
        )

    def uniform(
        self,
        low: float = 0.0,
        high: float = 1.0,
        shape: int | Iterable[int] = (),
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Numbers equally likely anywhere from `low` on and below `high`.

        Args:
            low: smallest one.
            high: above all of them.
            shape: of the numbers of one row.
            dtype: float32, of 24 random bits, or float64, of 53.

        Returns:
            `(B, *shape)`.

        Raises:
            PlanError: `low` is not below `high` in this data type, or an argument is of no use.

        Example:
            >>> rng = SampleRandom([5, 6, 7], seed=0, epoch=0)
            >>> flip = rng.uniform() < 0.5
            >>> flip.shape
            torch.Size([3])
        """
        kind = _float_type(dtype)
        lowest, highest = _finite("low", low, kind), _finite("high", high, kind)
        _finite("high - low", highest - lowest, kind)
        if not kind.type(lowest) < kind.type(highest):
            msg = f"low is {low!r} and high is {high!r}: low has to be below high in {kind}"
            raise PlanError(msg)
        sizes = _shape(shape)
        values = self._random.uniform(*self._call(sizes), low=lowest, high=highest, dtype=kind)
        return self._tensor(values, sizes)

    def normal(
        self,
        mean: float = 0.0,
        std: float = 1.0,
        shape: int | Iterable[int] = (),
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Normally distributed numbers.

        Args:
            mean: of the distribution.
            std: standard deviation, 0 or above.
            shape: of the numbers of one row.
            dtype: float32 or float64.

        Returns:
            `(B, *shape)`.

        Raises:
            PlanError: `std` is negative, or an argument is of no use.

        Example:
            >>> rng = SampleRandom([5, 6, 7], seed=0, epoch=0)
            >>> rng.normal(shape=(2, 4)).shape
            torch.Size([3, 2, 4])
        """
        kind = _float_type(dtype)
        centre, width = _finite("mean", mean, kind), _finite("std", std, kind)
        if width < 0:
            msg = f"std is {std!r}: a standard deviation is 0 or above"
            raise PlanError(msg)
        sizes = _shape(shape)
        values = self._random.normal(*self._call(sizes), mean=centre, std=width, dtype=kind)
        return self._tensor(values, sizes)

    def integers(self, low: int, high: int, shape: int | Iterable[int] = ()) -> Tensor:
        """Whole numbers equally likely from `low` on and below `high`.

        Args:
            low: smallest one.
            high: above all of them.
            shape: of the numbers of one row.

        Returns:
            `(B, *shape)` int64.

        Raises:
            PlanError: `low` is not below `high`, they leave int64, or an argument is no whole
                number.

        Example:
            >>> rng = SampleRandom([5, 6, 7], seed=0, epoch=0)
            >>> shifts = rng.integers(-8, 9, shape=2)
            >>> shifts.shape, shifts.dtype
            (torch.Size([3, 2]), torch.int64)
        """
        lowest, above = whole_number("low", low), whole_number("high", high)
        if not lowest < above:
            msg = f"low is {low!r} and high is {high!r}: low has to be below high"
            raise PlanError(msg)
        if lowest < _INT64.min or above - 1 > _INT64.max:
            msg = f"low is {low!r} and high is {high!r}: numbers between them do not fit int64"
            raise PlanError(msg)
        sizes = _shape(shape)
        return self._tensor(
            self._random.integers(*self._call(sizes), low=lowest, high=above), sizes
        )

    def _call(self, sizes: tuple[int, ...]) -> tuple[np.ndarray, int, int]:
        number, self._n_calls = self._n_calls, self._n_calls + 1
        return self._samples, number, math.prod(sizes)

    def _tensor(self, values: np.ndarray, sizes: tuple[int, ...]) -> Tensor:
        return torch.from_numpy(values.reshape(len(self._samples), *sizes))


def _float_type(dtype: torch.dtype) -> np.dtype:
    kind = next((found for known, found in _FLOATS.items() if known is dtype), None)
    if kind is None:
        msg = (
            f"dtype is {dtype!r}: numbers are drawn in torch.float32 or torch.float64, and can be "
            "converted with .to(dtype)"
        )
        raise PlanError(msg)
    return kind


def _finite(name: str, value: object, kind: np.dtype) -> float:
    number = math.nan
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            number = float(value)
    # Written so that NaN is refused too.
    if not abs(number) <= float(np.finfo(kind).max):
        msg = f"{name} is {value!r} of type {type(value).__name__}: a finite {kind} is needed"
        raise PlanError(msg)
    return number


def _shape(shape: int | Iterable[int]) -> tuple[int, ...]:
    try:
        sizes = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        return tuple(whole_number("a size", size, least=0) for size in sizes)
    except PlanError:
        msg = f"shape is {shape!r} of type {type(shape).__name__}: give whole numbers of 0 or above"
        raise PlanError(msg) from None
