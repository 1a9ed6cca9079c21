"""Who trained on which samples, step by step, and what several jobs amount to."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """One step of one process."""

    epoch: int
    step: int
    """Steps of the training that are done, this one included."""
    rank: int
    samples: tuple[int, ...]
    """Anchors of the batch."""
    loss: float


@dataclass(frozen=True)
class Step:
    """One step of all processes."""

    epoch: int
    number: int
    n_processes: int
    samples: tuple[int, ...]
    """Ascending, of all processes together."""
    loss: float
    """Mean over all samples."""


def write_entry(
    folder: Path, *, rank: int, epoch: int, step: int, samples: list[int], loss: float
) -> None:
    """Add a line, each process to a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"epoch": epoch, "step": step, "samples": samples, "loss": loss})
    with (folder / f"rank-{rank}.jsonl").open("a") as file:
        file.write(line + "\n")


def read_steps(folder: Path) -> list[Step]:
    """The steps that every process of a job finished, in order."""
    files = sorted(folder.glob("rank-*.jsonl"))
    by_rank = [list(_entries(file, rank)) for rank, file in enumerate(files)]
    # A process that was killed may have been a step behind.
    return [_together(entries) for entries in zip(*by_rank, strict=False)]


def what_counts(jobs: Sequence[Sequence[Step]]) -> list[tuple[int, Step]]:
    """The steps that are part of the trained model, each with the number of its job.

    A job goes on from a checkpoint: steps that an earlier one made after it are not in the model.
    """
    counted: list[tuple[int, Step]] = []
    for number, steps in enumerate(jobs):
        first = steps[0].number
        counted = [(job, step) for job, step in counted if step.number < first]
        counted += [(number, step) for step in steps]
    return counted


def samples_by_epoch(steps: Sequence[Step]) -> dict[int, list[int]]:
    """All samples of each epoch, in the order of the steps."""
    found: dict[int, list[int]] = {}
    for step in steps:
        found.setdefault(step.epoch, []).extend(step.samples)
    return found


def _entries(file: Path, rank: int) -> Iterator[Entry]:
    for line in file.read_text().splitlines():
        fields = json.loads(line)
        yield Entry(fields["epoch"], fields["step"], rank, tuple(fields["samples"]), fields["loss"])


def _together(entries: Sequence[Entry]) -> Step:
    first = entries[0]
    if any((entry.epoch, entry.step) != (first.epoch, first.step) for entry in entries):
        raise RuntimeError(f"the processes are not at the same step: {entries}")
    samples = [sample for entry in entries for sample in entry.samples]
    loss = sum(entry.loss * len(entry.samples) for entry in entries) / len(samples)
    return Step(first.epoch, first.step, len(entries), tuple(sorted(samples)), loss)
