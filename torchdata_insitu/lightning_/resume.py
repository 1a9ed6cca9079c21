"""The callback that makes a resume exact, whatever Lightning's own counters say."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torchdata_insitu.errors import StateError
from torchdata_insitu.lightning_.fit_counters import (
    GUARANTEES,
    find,
    mend,
    missing,
    n_trained,
    reopen_epoch,
    start_at,
)
from torchdata_insitu.loader import InSituLoader
from torchdata_insitu.loader_state import FORMAT
from torchdata_insitu.rank_check import check_ranks

__all__ = ["ResumeHooks"]

_LOOPS = ("fit_loop", "fit_loop.epoch_loop.val_loop", "validate_loop", "test_loop", "predict_loop")
_IN_WORK, _AT_END, _EARLY, _WALKED = GUARANTEES


class ResumeHooks:
    """Lets a training with `InSituLoader`s go on exactly where its checkpoint was saved.

    `InSituDataModule` adds one to its trainer. Give it yourself to a trainer with loaders of your
    own, several in a `CombinedLoader` too: `Trainer(callbacks=[InSituResume()])`.

    It tells the loaders how many batches were trained on, mends counters of Lightning that do not
    agree with them, and ends their threads when the trainer is done. What a version of Lightning
    lacks for that is said in one warning each.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> import torchdata_insitu as tdi
        >>> trainer = Trainer(
        ...     callbacks=[tdi.InSituResume()],
        ...     accelerator="cpu",
        ...     logger=False,
        ...     enable_checkpointing=False,
        ...     enable_progress_bar=False,
        ... )
        >>> [type(callback).__name__ for callback in trainer.callbacks][0]
        'InSituResume'
    """

    def on_load_checkpoint(
        self, trainer: Any, pl_module: Any, checkpoint: Mapping[str, Any]
    ) -> None:
        """Say that a checkpoint has the state of a data module of another name.

        And let an epoch go on that Lightning counts as over.
        """
        del pl_module
        reopen_epoch(checkpoint)
        data = getattr(trainer, "datamodule", None)
        own = type(data).__qualname__
        others = [name for name, value in checkpoint.items() if _is_loader_state(value)]
        if data is None or own in others or not others:
            return
        msg = (
            f"the checkpoint has the state of a data module {others[0]!r} and this one is {own!r}: "
            "Lightning gives it no state of another name, and training may go on at another place. "
            f"Name the class {others[0]!r} again, or give the state to load_state_dict before fit"
        )
        warnings.warn(msg, stacklevel=2)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Let counters and loaders agree before the first epoch.

        Raises:
            StateError: the epoch is of another length than the next one, and the trainer keeps the
                length of the first; or the ranks do not agree.
        """
        del pl_module
        lacking = {guarantee: missing(trainer, guarantee) for guarantee in GUARANTEES}
        for guarantee, paths in lacking.items():
            if paths:
                msg = (
                    f"this version of Lightning has no Trainer.{paths[0]}, so that it is not sure "
                    f"that {guarantee}"
                )
                warnings.warn(msg, stacklevel=2)
        loaders = _training_loaders(trainer)
        for loader in loaders:
            loader.progress = lambda: n_trained(trainer)
        loop = trainer.fit_loop
        if loaders and not lacking[_EARLY]:
            _load_late(loop, loaders)
        if loaders and not lacking[_AT_END]:
            _let_counters_agree(loop, loaders)
        for loader in loaders:
            if getattr(trainer, "world_size", 1) > 1:
                data = getattr(trainer, "datamodule", None)
                check_ranks(loader, error=getattr(data, "load_error", None))
            _check_length(trainer, loader)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the threads of all loaders."""
        del pl_module, exception
        _close_loaders(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str | None = None) -> None:
        """End the threads of all loaders, which count for themselves again."""
        del pl_module, stage
        _close_loaders(trainer)
        for loader in _training_loaders(trainer):
            loader.progress = None


def _close_loaders(trainer: Any) -> None:
    for loop in _LOOPS:
        for loader in _loaders_of(trainer, loop):
            loader.close()


def _let_counters_agree(loop: Any, loaders: list[InSituLoader]) -> None:
    epochs = loop.epoch_progress
    step, epoch = loaders[0].step, loaders[0].epoch
    if epochs.total.ready == 0 and (step or epoch):
        # A state was given to the loader and no checkpoint to the trainer.
        start_at(loop, epoch, step)
        return
    is_at_start = all(loader.step == 0 for loader in loaders)
    is_anew = is_at_start and all(loader.epoch == epochs.current.processed for loader in loaders)
    mend(loop, is_at_start=is_at_start, is_anew=is_anew)


def _is_loader_state(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("format") == FORMAT


def _loaders_of(trainer: Any, loop: str) -> list[InSituLoader]:
    """The loaders of ours in a loop of a trainer, of a `CombinedLoader` all."""
    found = find(trainer, f"{loop}._combined_loader.flattened") or []
    return [loader for loader in found if isinstance(loader, InSituLoader)]


def _training_loaders(trainer: Any) -> list[InSituLoader]:
    return _loaders_of(trainer, "fit_loop")


def _load_late(loop: Any, loaders: list[InSituLoader]) -> None:
    """Load states that came after the loaders had been asked for.

    That is so when `configure_optimizers` reads `trainer.estimated_stepping_batches`. The fetcher
    then begins anew, for an iteration ends when its loader is given a state; and also over loaders
    of ours alone, whose iterations a callback may have ended that trains in between. Others may
    lose what they handed out.
    """
    has_states = loop.restarting and bool(loop._combined_loader_states_to_load)  # noqa: SLF001 - found by its name before
    if has_states:
        loop._load_combined_loader_states()  # noqa: SLF001 - as above
    if has_states or len(loaders) == len(loop._combined_loader.flattened):  # noqa: SLF001 - as above
        iter(loop._data_fetcher)  # noqa: SLF001 - as above


def _check_length(trainer: Any, loader: InSituLoader) -> None:
    """Refuse a resume after which Lightning would give each later epoch the length of this one."""
    order = loader.chain.order
    if getattr(trainer, "reload_dataloaders_every_n_epochs", 0) == 1 or not loader.step:
        return
    n_epochs = find(trainer, "fit_loop.max_epochs")
    if loader.chain.mix is not None or (
        n_epochs not in (None, -1) and loader.epoch + 1 >= n_epochs
    ):
        return
    now, later = len(loader), order.steps_from(order.next_epoch(loader.cursor))
    limit = getattr(trainer, "limit_train_batches", 1.0)
    if _limited(now, limit) == _limited(later, limit):
        return
    msg = (
        f"{loader.step} batches of epoch {loader.epoch} are done, and since the global batch size "
        f"or the data have changed, this epoch has {now} batches and each later one {later}, but "
        "the Trainer takes the length of this one for all: give "
        "Trainer(reload_dataloaders_every_n_epochs=1)"
    )
    raise StateError(msg)


def _limited(length: int, limit: float) -> int:
    return min(length, limit) if isinstance(limit, int) else int(length * limit)
