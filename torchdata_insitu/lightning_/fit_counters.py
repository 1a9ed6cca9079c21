"""Lightning's counters of a training, and what has to be mended in them at a resume.

They are private, so that every one is looked up by its name: where a version has none, what it is
needed for is off, see `GUARANTEES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["GUARANTEES", "find", "mend", "missing", "n_trained", "reopen_epoch", "start_at"]

GUARANTEES = {
    "a checkpoint that is saved while a batch is in work trains on that batch again": (
        "fit_loop.epoch_loop.batch_progress.current.processed",
    ),
    "a checkpoint that is saved at the end of an epoch begins the next one at its start": (
        "fit_loop.max_batches",
        "fit_loop.reset_restart_stage",
        "fit_loop.restarted_mid_epoch",
        "fit_loop.restarted_on_epoch_start",
        "fit_loop._restart_stage",
        "fit_loop._restarting",
        "fit_loop.epoch_progress.total.processed",
        "fit_loop.epoch_progress.current.started",
        "fit_loop.epoch_loop.batch_progress.reset_on_run",
        "fit_loop.epoch_loop.update_restart_stage",
        "fit_loop.epoch_loop.reset_restart_stage",
        "fit_loop.epoch_loop.restarted_on_train_batch_end",
    ),
    "loaders resume that Lightning asks for before it has read their states": (
        "fit_loop._combined_loader_states_to_load",
        "fit_loop._load_combined_loader_states",
        "fit_loop._data_fetcher",
    ),
    "loaders that are not of an InSituDataModule resume": ("fit_loop._combined_loader.flattened",),
}
"""What is guaranteed, and the attributes of a `Trainer` that it is made of."""

_MID_EPOCH = "restarted_mid_epoch"
_MISSING = object()


def find(trainer: Any, path: str) -> Any:
    """An attribute of a trainer by its dotted path; None where it has none.

    Example:
        >>> find("abc", "upper.__name__"), find("abc", "lower.case")
        ('upper', None)
    """
    found = _find(trainer, path)
    return None if found is _MISSING else found


def _find(root: Any, path: str) -> Any:
    for name in path.split("."):
        root = getattr(root, name, _MISSING)
        if root is _MISSING:
            break
    return root


def missing(trainer: Any, guarantee: str) -> list[str]:
    """The attributes that a guarantee needs and a trainer does not have."""
    return [path for path in GUARANTEES[guarantee] if _find(trainer, path) is _MISSING]


def n_trained(trainer: Any) -> int | None:
    """Batches of this epoch that were trained on; None where a version does not tell.

    Example:
        >>> n_trained("no trainer")
    """
    found = find(trainer, "fit_loop.epoch_loop.batch_progress.current.processed")
    return found if isinstance(found, int) else None


def reopen_epoch(checkpoint: Mapping[str, Any]) -> None:
    """Let an epoch go on that was left before its last batch.

    Lightning counts it as over where `max_time`, `should_stop` or `max_steps` ended it: it would
    begin the next one, or train nothing where it was the last. An epoch that ended with a smaller
    `limit_train_batches` is over.

    Args:
        checkpoint: what Lightning saved, before it is given to the loops.

    Example:
        >>> batches = {"current": {"completed": 3}, "is_last_batch": False}
        >>> epoch = {"ready": 2, "started": 2, "processed": 2, "completed": 1}
        >>> epochs = {"total": dict(epoch), "current": epoch}
        >>> loop = {"epoch_progress": epochs, "epoch_loop.batch_progress": batches}
        >>> reopen_epoch({"loops": {"fit_loop": loop}})
        >>> epoch["processed"], epoch["completed"]
        (1, 1)
    """
    try:
        loop = checkpoint["loops"]["fit_loop"]
        epochs, batches = loop["epoch_progress"], loop["epoch_loop.batch_progress"]
        epoch = epochs["current"]
        is_over = epoch["processed"] == epoch["started"]
        is_cut = is_over and batches["current"]["completed"] and not batches["is_last_batch"]
    except (KeyError, TypeError):
        # A checkpoint without a training, or of a version that counts otherwise.
        return
    if is_cut:
        for counts in (epochs["total"], epoch):
            counts["processed"] -= 1
            counts["completed"] = min(counts["completed"], counts["processed"])


def start_at(loop: Any, epoch: int, step: int) -> None:
    """Let a training without a checkpoint count from the place that its loaders were given.

    Args:
        loop: `trainer.fit_loop`.
        epoch: where the loaders stand.
        step: batches of that epoch that are done.
    """
    for counts in (loop.epoch_progress.total, loop.epoch_progress.current):
        counts.processed = counts.completed = epoch
        counts.ready = counts.started = epoch + 1 if step else epoch
    if step:
        batches = loop.epoch_loop.batch_progress
        for counts in (batches.total, batches.current):
            counts.ready = counts.started = counts.processed = counts.completed = step
        _restart(loop)
        loop._restart_stage = _MID_EPOCH  # noqa: SLF001 - found by its name before


def mend(loop: Any, *, is_at_start: bool, is_anew: bool = False) -> None:
    """Let the counters of a fit loop that was resumed say the same as its loaders.

    Called once they were loaded, between the loop's `reset` and its first epoch. Three things go
    wrong in Lightning 2.6, with any loader:

    - A batch that was in work when the checkpoint was saved stays counted in the totals, so that
      the next checkpoint of the resumed run is misread.
    - An epoch that was over when the checkpoint was saved leaks its number of batches into the next
      one where the loop restarts, as it does with `max_steps`: it ends after one batch.
    - Of a checkpoint of the last batch, the loop closes the epoch and does not open the next one.
      `on_train_epoch_start` is not called for it, and checkpoints inside it are misread.

    Args:
        loop: `trainer.fit_loop`.
        is_at_start: whether the loaders stand at the start of an epoch.
        is_anew: whether that is the start of the epoch that was saved in its middle, as for a state
            that did not fit.
    """
    epochs, batches = loop.epoch_progress, loop.epoch_loop.batch_progress
    if not loop.restarting:
        return
    if not loop.epoch_loop.restarted_on_train_batch_end:
        total = batches.total
        total.ready = total.started = total.processed = total.completed
    if loop.restarted_mid_epoch:
        _mend_mid_epoch(loop, is_anew=is_anew)
    elif batches.current.completed and (
        is_at_start or batches.current.completed >= loop.max_batches
    ):
        _forget_epoch(loop.epoch_loop)
        if loop.restarted_on_epoch_start:
            # The loop counts the epoch as ready no second time.
            epochs.current.ready = epochs.current.started + 1
            return
        if epochs.current.completed < epochs.current.processed:
            epochs.increment_completed()
        loop.reset_restart_stage()


def _mend_mid_epoch(loop: Any, *, is_anew: bool) -> None:
    epoch, batches = loop.epoch_progress.current, loop.epoch_loop.batch_progress
    if epoch.processed == epoch.started:
        loop.reset_restart_stage()
        # The loop does it itself if the next epoch has no more batches.
        if batches.current.completed + 1 < loop.max_batches:
            _forget_epoch(loop.epoch_loop)
    elif is_anew:
        _forget_epoch(loop.epoch_loop)


def _restart(loop: Any) -> None:
    # Past the setter of the loop itself, which takes an epoch that counts as over for one.
    loop._restarting = True  # noqa: SLF001 - found by its name before
    loop.epoch_loop.restarting = True
    loop.epoch_loop.update_restart_stage()


def _forget_epoch(epoch_loop: Any) -> None:
    """Begin to count batches anew, with the last one of the epoch before counted as done."""
    batches = epoch_loop.batch_progress
    if epoch_loop.restarted_on_train_batch_end:
        batches.total.completed = batches.total.processed
        epoch_loop.reset_restart_stage()
    batches.reset_on_run()
