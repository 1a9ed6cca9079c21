"""Time the first epoch of one engine over one layout, in this process.

What is timed: from asking for the first batch until the last has come, after the engine has opened
the store, which is timed apart. Before that, and alike for every engine: files are put into the
cache of the system, memory is touched (as much as all values and a block take is allocated, written
and freed, since the first touch of memory is slow on virtual machines), and an epoch is run over a
store of two stored chunks, or shards, for each array, so that code paths and libraries are warm
while caches of values are not. Only an engine that is about resident values has read them all in
its set-up.

A new process gets its memory from the system page by page, which the first epoch pays for. Engines
that can forget what is resident are timed for a second epoch, as cold as the first, but in memory
that they have already.
"""

import argparse
import gc
import json
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.engines import ENGINES, engine_class
from benchmarks.engines.engine import Engine, Task, UnsupportedError
from benchmarks.layouts import LAYOUTS, make_layout, make_small_layout
from benchmarks.oracle import EpochCheck, stored_values

MAX_SECONDS = 3.0
_BLOCK_SIZE = 1 << 20


@dataclass(frozen=True)
class EpochTimes:
    """What one epoch took."""

    set_up_s: float
    """Until the engine had opened the store."""
    first_batch_s: float | None
    """From the start of the epoch to its first batch; None without batches."""
    epoch_s: float
    """All of the epoch: where it was cut, what it would have taken."""
    again_s: float | None
    """All of a second epoch with nothing resident; None for engines that cannot forget."""
    share: float
    """Of the draws that came; below 1 where the epoch was cut."""
    delivered_bytes: int
    """Bytes of values in all batches of a whole epoch."""
    reads: int | None
    """Reads of the epoch, as far as the engine counts them."""
    bytes_read: int | None
    """Encoded bytes of the epoch, as far as the engine counts them."""


def main() -> None:
    """Time one epoch and print it as one line of JSON; null for what an engine cannot do."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layout", choices=sorted(LAYOUTS), default="c8")
    parser.add_argument("--engine", choices=ENGINES, default="ours")
    parser.add_argument("--max-seconds", type=float, default=MAX_SECONDS)
    parser.add_argument("--folder", type=Path, default=Path("build/layouts"))
    arguments = parser.parse_args()
    times = time_layout(arguments.engine, arguments.layout, arguments.folder, arguments.max_seconds)
    print(json.dumps(None if times is None else asdict(times)))


def time_layout(
    engine: str, layout: str, folder: Path, max_seconds: float = MAX_SECONDS
) -> EpochTimes | None:
    """Time the first epoch of an engine over a layout, see above; None if it cannot do it."""
    task = task_of(layout, folder)
    small = Task(make_small_layout(layout, folder), task.offsets)
    read_files(task.path)
    touch_memory(task)
    make = engine_class(engine)
    try:
        with closing(make(small)) as warm_up:
            for _ in warm_up.epoch():
                pass
        return time_epoch(make, task, max_seconds)
    except UnsupportedError:
        return None


def check_layout(
    engines: list[str], layout: str, folder: Path, max_seconds: float = MAX_SECONDS
) -> dict[str, float | None]:
    """Compare the first epoch of engines with the oracle.

    Returns:
        Share of the epoch that was looked at, by engine; None for what one cannot do.

    Raises:
        WrongEpochError: An engine delivered something else.
    """
    task = task_of(layout, folder)
    stored = stored_values(task.path)
    shares: dict[str, float | None] = {}
    for name in engines:
        try:
            with closing(engine_class(name)(task)) as engine:
                anchors, offsets = engine.expected()
                check = EpochCheck(stored, anchors, offsets)
                n_draws = 0
                is_cut = False
                start = time.perf_counter()
                for n in engine.epoch(check.see):
                    n_draws += n
                    is_cut = engine.is_steady and time.perf_counter() - start > max_seconds
                    if is_cut:
                        break
                check.finish(is_cut=is_cut)
                shares[name] = n_draws / len(anchors)
        except UnsupportedError:
            shares[name] = None
    return shares


def task_of(layout: str, folder: Path) -> Task:
    """What an epoch over a layout is; its store is made if it is not there."""
    return Task(make_layout(layout, folder), LAYOUTS[layout].offsets)


def time_epoch(make: type[Engine], task: Task, max_seconds: float) -> EpochTimes:
    """Set an engine up and time its first epoch, and a second one where it can forget the first.

    Raises:
        RuntimeError: It delivered fewer draws than there are, or more.
    """
    gc.collect()
    begin = time.perf_counter()
    with closing(make(task)) as engine:
        set_up_s = time.perf_counter() - begin
        n_all = len(engine.expected()[0])
        first_s: float | None = None
        n_first = n_draws = 0
        is_cut = False
        start = time.perf_counter()
        batches = engine.epoch()
        for n in batches:
            n_draws += n
            if first_s is None:
                first_s, n_first = time.perf_counter() - start, n
            is_cut = (
                engine.is_steady
                and n_first < n_draws < n_all
                and time.perf_counter() - start > max_seconds
            )
            if is_cut:
                break
        spent_s = time.perf_counter() - start
        if n_draws != n_all and not is_cut:
            raise RuntimeError(f"{n_draws} of {n_all} draws came: {make.__name__} is wrong")
        reads, bytes_read = engine.reads, engine.bytes_read
        again_s: float | None = None
        if engine.forget():
            start = time.perf_counter()
            for _ in engine.epoch():
                pass
            again_s = time.perf_counter() - start
        return EpochTimes(
            set_up_s=set_up_s,
            first_batch_s=first_s if engine.has_batches else None,
            epoch_s=whole_epoch_s(first_s or 0.0, spent_s, n_first, n_draws, n_all),
            again_s=again_s,
            share=n_draws / n_all,
            delivered_bytes=task.delivered_bytes(),
            reads=reads,
            bytes_read=bytes_read,
        )


def whole_epoch_s(first_s: float, spent_s: float, n_first: int, n_draws: int, n_all: int) -> float:
    """Seconds that an epoch takes of which a part was timed.

    What comes before the first batch, such as the start of workers, comes once: only what follows
    goes on at the same rate.
    """
    if n_draws == n_all:
        return spent_s
    return first_s + (spent_s - first_s) * (n_all - n_first) / (n_draws - n_first)


def read_files(path: Path) -> None:
    """Put the files of a store into the cache of the system."""
    for file in path.rglob("*"):
        if file.is_file():
            with file.open("rb", buffering=0) as content:
                while content.read(_BLOCK_SIZE):
                    pass


def touch_memory(task: Task) -> None:
    """Allocate, write and free as much memory as all values take, and a block of them."""
    np.ones(2 * task.delivered_bytes() // len(task.offsets), np.uint8)


if __name__ == "__main__":
    main()
