"""The data module: an archive as the loaders of training, validation, test and prediction."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from torchdata_insitu.errors import PlanError, StateError
from torchdata_insitu.fetch.store_like import Store
from torchdata_insitu.fetch.stores import open_store
from torchdata_insitu.geometry.view import View
from torchdata_insitu.geometry.view_spec import ViewSpec
from torchdata_insitu.lightning_.fit_counters import n_trained
from torchdata_insitu.lightning_.pool_floors import check_floors
from torchdata_insitu.lightning_.resume import ResumeHooks
from torchdata_insitu.lightning_.split_option import STAGES, splits_of
from torchdata_insitu.loader import InSituLoader
from torchdata_insitu.open_arrays import open_arrays
from torchdata_insitu.pipeline import build_loader
from torchdata_insitu.planning.split import Split, Splits
from torchdata_insitu.pool.chunk_pool import ChunkPool
from torchdata_insitu.redaction import without_secrets

__all__ = ["DataModuleHooks"]

_TO_LOAD = "_combined_loader_states_to_load"
# A subclass that saves its hyperparameters has views in its checkpoints.
torch.serialization.add_safe_globals([ViewSpec])
_STAGES_OF = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",)}


@dataclass(frozen=True)
class _Made:
    """A loader, and what it was made from."""

    loader: InSituLoader
    options: dict[str, Any]


@dataclass(frozen=True)
class _Opened:
    """What all loaders share."""

    store: Store
    views: dict[str, View]
    splits: Mapping[str, Split | None]
    pool: ChunkPool


class DataModuleHooks:
    """A Lightning data module over an archive that trains in place and resumes exactly.

    All its values can stand in a YAML file. Nothing is opened before `setup`, so that it can be
    sent to other processes.

    Training is shuffled. Validation, test and prediction are in the order of the archive, begin at
    the start each time, and give every sample once, equally many batches on each rank: their
    batches have `"valid"`, see `mask_invalid`. Prediction takes the split `"predict"` if there is
    one, else `"test"`. With `Trainer(overfit_batches=...)` training is not shuffled either.

    Its state is that of the training loader. What `load_state_dict` is given holds until the end of
    the next `fit`, whatever is called in between. `setup("fit")` adds `InSituResume` to the
    callbacks of the trainer unless one is there.

    Args:
        url: path or URL of the archive, see `open_store`; or a Zarr store.
        views: what a batch holds, by name.
        split: fractions by stage as in `{"train": 0.8, "val": 0.2}`; ranges of samples as in
            `{"train": [0, 800], "val": [800, 1000]}`; `Splits`, or the path of a file that
            `Splits.save` wrote. Stages are `"train"`, `"val"`, `"test"` and `"predict"`. None: all
            samples for training.
        gap: samples left out between two splits, see `split_by_chunk`.
        storage_options: options of `open_store`, such as `{"region": "eu-west-1"}`.
        sample_axis: the axis along which samples are counted, as number or dimension name.
        dtype: what a batch holds, for all arrays or by array, see `open_arrays`.
        batch_size: draws in a training batch of one rank. A plain attribute: a loader is made anew
            when it was changed, as `Tuner.scale_batch_size` does.
        val_batch_size: the same for all else; None for `batch_size`.
        shuffle: permute the training draws.
        seed: keys every permutation.
        block_chunks: units whose draws are shuffled among themselves.
        lanes: equal shares of an epoch that are read side by side; None for the world size.
        tail: what happens to the last training batch: `"short"`, `"drop"` or `"pad"`.
        budget_bytes: budget of the one pool that all loaders share.
        train_transforms: functions of a batch for training, see `build_loader`.
        batch_transforms: functions of a batch for every stage, before those.
        loader_options: further options of `build_loader`, such as `prefetch_factor`.

    Raises:
        PlanError: views that are no `ViewSpec`.

    Example:
        >>> import torchdata_insitu as tdi
        >>> from torchdata_insitu.testing import make_store
        >>> data = tdi.InSituDataModule(
        ...     make_store({"t2m": (80, 2, 3)}, chunks=(4, 2, 3)),
        ...     views={"x": tdi.ViewSpec("t2m", window=[-1, 0]), "y": tdi.ViewSpec("t2m", shift=4)},
        ...     split={"train": 0.8, "val": 0.2},
        ...     batch_size=8,
        ...     budget_bytes="10%",
        ... )
        >>> data.setup("fit")
        >>> len(data.train_dataloader()), len(data.val_dataloader())
        (8, 1)
        >>> data.teardown("fit")
    """

    base: ClassVar[str]
    """Package of the trainers that take it."""
    resume: ClassVar[type[ResumeHooks]]
    """The callback of that package."""
    trainer: Any

    def __init__(
        self,
        url: str | Path | Store,
        views: dict[str, ViewSpec],
        split: dict[str, float]
        | dict[str, list[int]]
        | dict[str, list[list[int]]]
        | Splits
        | Path
        | str
        | None = None,
        *,
        gap: int | Literal["auto"] = "auto",
        storage_options: dict[str, Any] | None = None,
        sample_axis: int | str = 0,
        dtype: str | dict[str, str] | None = None,
        batch_size: int = 32,
        val_batch_size: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        block_chunks: int = 16,
        lanes: int | None = None,
        tail: str = "short",
        budget_bytes: int | str = "auto",
        train_transforms: list[Callable[..., dict[str, Tensor]]] | None = None,
        batch_transforms: list[Callable[..., dict[str, Tensor]]] | None = None,
        loader_options: dict[str, Any] | None = None,
    ) -> None:
        """Keep the values; nothing is opened."""
        super().__init__()
        for name, spec in views.items():
            if not isinstance(spec, ViewSpec):
                msg = (
                    f"view {name!r} is {spec!r} of type {type(spec).__name__}: give a ViewSpec, "
                    "such as ViewSpec('t2m', shift=1)"
                )
                raise PlanError(msg)
        self.batch_size = batch_size
        self.val_batch_size = val_batch_size
        self._url = url
        self._specs = dict(views)
        self._split = split
        self._gap: Any = gap
        self._storage_options = dict(storage_options or {})
        self._array_options: dict[str, Any] = {"sample_axis": sample_axis, "dtype": dtype}
        self._budget_bytes = budget_bytes
        self._order = {"seed": seed, "block_chunks": block_chunks, "lanes": lanes}
        self._training = {"shuffle": shuffle, "tail": tail}
        self._transforms = [*(batch_transforms or [])]
        self._train_transforms = [*(train_transforms or [])]
        self._loader_options = dict(loader_options or {})
        self._state: dict[str, Any] | None = None
        self._opened: _Opened | None = None
        self._made: dict[str, _Made] = {}
        self._is_over = False
        self.load_error: StateError | None = None

    def setup(self, stage: str | None = None) -> None:
        """Open the archive, and check that what is read at the same time fits the pool.

        Args:
            stage: `"fit"`, `"validate"`, `"test"` or `"predict"`.

        Raises:
            BudgetError: the floors of training and validation are more than the budget.
            PlanError: there is no split for the stage, or the trainer is of another package.
        """
        self._check_base()
        # Lightning gives a member of an enumeration.
        stages = _STAGES_OF.get(getattr(stage, "value", stage) or "", ())
        if stage == "fit":
            self._begin_fit()
            if not getattr(self.trainer, "enable_validation", True) or not self._has("val"):
                stages = ("train",)
        loaders = {name: self._loader(name) for name in stages}
        if loaders:
            check_floors(self._open().pool, loaders)

    def _begin_fit(self) -> None:
        self._leave_last_fit()
        callbacks = getattr(self.trainer, "callbacks", None)
        if callbacks is not None and not any(isinstance(c, ResumeHooks) for c in callbacks):
            callbacks.insert(0, self.resume())

    def _leave_last_fit(self) -> None:
        """Let go of the loader of a fit that is over: kept for a checkpoint saved after the end."""
        if self._is_over:
            self._made.pop("train", None)
            self._is_over = False
            self.load_error = None

    def _check_base(self) -> None:
        trainer = self.trainer
        if trainer is None:
            return
        packages = {cls.__module__.partition(".trainer")[0] for cls in type(trainer).__mro__}
        others = packages & {"lightning.pytorch", "pytorch_lightning"} - {self.base}
        if others and self.base not in packages:
            (other,) = others
            name = other.partition(".")[0]
            msg = (
                f"this InSituDataModule is for a Trainer of {self.base}, and the Trainer is of "
                f"{other}: take torchdata_insitu.lightning_.for_base({name!r}).InSituDataModule"
            )
            raise PlanError(msg)

    def _open(self) -> _Opened:
        if self._opened is None:
            store = open_store(self._url, **self._storage_options)
            names = sorted({name for spec in self._specs.values() for name in spec.names})
            arrays = open_arrays(store, names, **self._array_options)
            views = {name: spec.view(arrays) for name, spec in self._specs.items()}
            splits = splits_of(self._split, views, self._gap)
            self._opened = _Opened(store, views, splits, ChunkPool(self._budget_bytes))
            is_own = type(self).val_dataloader is DataModuleHooks.val_dataloader
            if is_own and "val" not in splits:
                # Lightning looks whether its own was overridden, and else validates nothing.
                vars(self)["val_dataloader"] = super().val_dataloader  # type: ignore[misc]
        return self._opened

    def _has(self, stage: str) -> bool:
        return stage in self._open().splits

    def _loader(self, stage: str) -> InSituLoader:
        opened = self._open()
        if stage not in opened.splits:
            msg = f"there is no split {stage!r}: split has {list(opened.splits)} of {list(STAGES)}"
            raise PlanError(msg)
        options = self._options(stage)
        made = self._made.get(stage)
        if made is not None and made.options == options:
            return made.loader
        if made is not None:
            made.loader.close()
        loader = build_loader(
            opened.store,
            opened.views,
            split=opened.splits[stage],
            pool=opened.pool,
            name=stage,
            **self._loader_options,
            **options,
        )
        self._made[stage] = _Made(loader, options)
        if stage == "train":
            if self.trainer is not None:
                loader.progress = self._n_trained
            if self._state is not None:
                loader.load_state_dict(self._state)
        return loader

    def _options(self, stage: str) -> dict[str, Any]:
        """What a loader is made anew for when it changes."""
        ranks = getattr(self.trainer, "distributed_sampler_kwargs", None) or {}
        options: dict[str, Any] = {
            **self._order,
            "rank": ranks.get("rank"),
            "world_size": ranks.get("num_replicas"),
            "batch_transforms": tuple(self._transforms),
        }
        if stage != "train":
            batch_size = self.batch_size if self.val_batch_size is None else self.val_batch_size
            return {**options, "batch_size": batch_size, "shuffle": False, "tail": "exact"}
        options.update(self._training, batch_size=self.batch_size)
        options["batch_transforms"] += tuple(self._train_transforms)
        if getattr(self.trainer, "overfit_batches", 0):
            options["shuffle"] = False
        return options

    def _n_trained(self) -> int | None:
        return n_trained(self.trainer)

    def train_dataloader(self) -> InSituLoader:
        """The training loader, the same one while batch size and ranks are."""
        loop = getattr(self.trainer, "fit_loop", None)
        if self.load_error is not None and hasattr(loop, _TO_LOAD):
            # Lightning would load it again, and fail on this rank while the others wait.
            setattr(loop, _TO_LOAD, [])
        return self._loader("train")

    def val_dataloader(self) -> InSituLoader:
        """The loader of split `"val"`; without that split, nothing is validated in a fit."""
        return self._loader("val")

    def test_dataloader(self) -> InSituLoader:
        """The loader of split `"test"`."""
        return self._loader("test")

    def predict_dataloader(self) -> InSituLoader:
        """The loader of split `"predict"`, else of `"test"`."""
        return self._loader("predict" if self._has("predict") else "test")

    def state_dict(self) -> dict[str, Any]:
        """The state of the training loader; empty if there is none and no state was loaded."""
        made = self._made.get("train")
        if made is not None:
            return made.loader.state_dict()
        return copy.deepcopy(self._state or {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next training go on at a state, whether its loader is made already or not.

        A trainer that only evaluates a checkpoint has no use for it.

        Raises:
            StateError: the state is foreign, newer, or of another plan; found here if the archive
                is open, else by `setup`. Under several ranks all of them raise it, when the
                training begins: none is left waiting for one that failed.
        """
        if self._is_evaluating():
            return
        self._leave_last_fit()
        made = self._made.get("train")
        self.load_error = None
        if made is not None:
            try:
                made.loader.load_state_dict(state_dict)
            except StateError as error:
                if getattr(self.trainer, "world_size", 1) == 1:
                    raise
                self.load_error = error
                return
        self._state = copy.deepcopy(state_dict)

    def _is_evaluating(self) -> bool:
        state = getattr(self.trainer, "state", None)
        is_running = getattr(state, "status", None) == "running"
        return is_running and getattr(state, "fn", "fit") != "fit"

    def on_exception(self, exception: BaseException) -> None:
        """Close what is open: Lightning tears nothing down after an error."""
        del exception
        self.teardown(getattr(getattr(self.trainer, "state", None), "fn", None))

    def teardown(self, stage: str | None = None) -> None:
        """End threads and reads of all loaders, and give the memory of the pool back."""
        for name, made in list(self._made.items()):
            made.loader.close()
            if name != "train":
                del self._made[name]
        if self._opened is not None:
            self._opened.pool.return_memory()
        if stage in ("fit", None):
            self._is_over = True
            self._state = None

    def __getstate__(self) -> dict[str, Any]:
        """Its values and the state that was loaded; a copy opens its own archive."""
        kept = {**self.__dict__, "_opened": None, "_made": {}, "_is_over": False}
        kept.pop("val_dataloader", None)
        return kept

    def __str__(self) -> str:
        """The archive and what a batch holds; Lightning's would read all data to count it."""
        url = without_secrets(str(self._url))
        return f"{type(self).__name__}({url!r}, views {list(self._specs)})"

    __repr__ = __str__
