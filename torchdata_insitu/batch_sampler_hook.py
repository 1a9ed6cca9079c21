"""What a trainer looks for in a loader to tell it the epoch."""

from __future__ import annotations

import sys
import warnings
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from torchdata_insitu.loader import InSituLoader

__all__ = ["BatchSamplerHook"]

_LIGHTNING = ("lightning.", "lightning_fabric.", "pytorch_lightning.")
_WARNED: weakref.WeakSet[InSituLoader] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class BatchSamplerHook:
    """Stands where a `DataLoader` has its batch sampler; it samples nothing.

    Lightning calls `loader.batch_sampler.sampler.set_epoch(epoch)` before each epoch, and others
    read the batch size there.
    """

    loader: InSituLoader
    """Whose epochs are counted."""
    batch_size: int
    """Draws in a full batch of one rank."""

    @property
    def sampler(self) -> Self:
        """Itself, which has `set_epoch`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be of an epoch of the trainer.

        Other than after `InSituLoader.set_epoch`, a place of an earlier epoch that was loaded is
        left: the trainer has ended that epoch, as with a limit on its batches. A later one is kept.
        """
        caller = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001 - public by use
        if caller.startswith(_LIGHTNING):
            self._warn_of_lightning()
        self.loader._enter_epoch(epoch)  # noqa: SLF001 - the two are one

    def _warn_of_lightning(self) -> None:
        loader = self.loader
        # What is not shuffled is for evaluation, which always begins at its start.
        is_shuffled = any(b.planner.plan.shuffle for b in loader.chain.branches.values())
        if loader.progress is not None or not is_shuffled or loader in _WARNED:
            return
        _WARNED.add(loader)
        msg = (
            "an InSituLoader is used by a Trainer without InSituResume, so that some checkpoints "
            "do not resume exactly: give Trainer(callbacks=[torchdata_insitu.InSituResume()]), or "
            "use InSituDataModule"
        )
        warnings.warn(msg, stacklevel=3)
