"""Measure a cold epoch over a store that takes its time, against the ideal.

Usage: ``python benchmarks/latency.py --layouts c8 wb2 --inflight 8 32``. The ideal is reads x
latency / ``max_inflight``, or the same epoch from local files where that takes longer. Two kinds of
store: ``loop`` is read on Zarr's event loop and waits there; ``http`` is a server in a process of
its own, read through obstore. That server shares the cores, so that its ideal is also no shorter
than bare reads of the same keys on ``max_inflight`` threads, with nothing decoded.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import obstore
from layouts import LAYOUTS, make_layout
from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import MemoryStore, ObjectStore

import torchdata_insitu as tdi
from torchdata_insitu.testing import FaultServer, LatencyStore

BATCH_SIZE = 32
KINDS = ("loop", "http")


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layouts", nargs="+", choices=sorted(LAYOUTS), default=["c8"])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--inflight", nargs="+", type=int, default=[8, 32])
    parser.add_argument("--latency-ms", type=float, default=30.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("build/layouts"))
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    latency_s = arguments.latency_ms / 1e3
    if arguments.serve:
        serve(arguments.serve, latency_s)
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    print("layout kind   max_inflight   reads   ideal s   epoch s   epoch/ideal (min-max)")
    for layout in arguments.layouts:
        path = make_layout(layout, arguments.folder)
        for kind in arguments.kinds:
            with slow_store(path, kind, latency_s) as store:
                for max_inflight in arguments.inflight:
                    line = measure(path, store, max_inflight, latency_s, arguments.repeats)
                    print(f"{layout:<6} {kind:<6} {line}", flush=True)


def measure(path: Path, store: Store, max_inflight: int, latency_s: float, repeats: int) -> str:
    """Epochs from local files and from the slow store in turns; the first pair is dropped."""
    ratios, ideals, epochs, n_reads = [], [], [], 0
    options = {"batch_size": BATCH_SIZE, "seed": 1, "max_inflight": max_inflight}
    near = tdi.build_loader(path, tdi.open_arrays(path), **options)  # type: ignore[arg-type]
    far = tdi.build_loader(store, tdi.open_arrays(store, ["a", "b"]), **options)  # type: ignore[arg-type]
    with near, far:
        for repeat in range(repeats + 1):
            near_s, _ = cold_epoch(near)
            far_s, n_reads = cold_epoch(far)
            bare_s = bare_reads(store, path, max_inflight)
            ideal_s = max(near_s, bare_s, n_reads * latency_s / max_inflight)
            if repeat:
                ratios.append(far_s / ideal_s)
                ideals.append(ideal_s)
                epochs.append(far_s)
    return (
        f"{max_inflight:>12} {n_reads:>7} {statistics.median(ideals):>9.2f} "
        f"{statistics.median(epochs):>9.2f} {statistics.median(ratios):>13.2f} "
        f"({min(ratios):.2f}-{max(ratios):.2f})"
    )


def bare_reads(store: Store, path: Path, max_inflight: int) -> float:
    """Seconds to read every chunk through obstore and do nothing with it; 0 for another store."""
    if not isinstance(store, ObjectStore):
        return 0.0
    files = [file for file in path.rglob("*") if file.is_file() and file.name != "zarr.json"]
    keys = [file.relative_to(path).as_posix() for file in files]
    start = time.perf_counter()
    with ThreadPoolExecutor(max_inflight) as threads:
        for _ in threads.map(lambda key: obstore.get(store.store, key).bytes(), keys):
            pass
    return time.perf_counter() - start


def cold_epoch(loader: tdi.InSituLoader) -> tuple[float, int]:
    """Seconds and reads of an epoch that finds nothing resident."""
    loader.chain.pool_node.pool.clear()
    n_before = sum(loader.stats().reads.values())
    start = time.perf_counter()
    for batch in loader:
        del batch
    return time.perf_counter() - start, sum(loader.stats().reads.values()) - n_before


@contextmanager
def slow_store(
    path: Path, kind: str, latency_s: float, *, in_memory: bool = True
) -> Iterator[Store]:
    """A store whose every read of a chunk takes `latency_s` at least.

    Args:
        path: What is read in the end.
        kind: One of `KINDS`.
        latency_s: Seconds of one read.
        in_memory: Let a store of kind `loop` hold a copy, which costs nothing to read.
    """
    if kind == "loop":
        yield LatencyStore(copy_of(path) if in_memory else tdi.open_store(path), latency_s)
        return
    command = [sys.executable, __file__, "--serve", str(path), "--latency-ms", f"{1e3 * latency_s}"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        told, kept_open = server.stdout, server.stdin
        if told is None or kept_open is None:
            raise OSError("the server has no pipes")
        yield tdi.open_store(told.readline().strip())
        kept_open.close()


def copy_of(path: Path) -> Store:
    """A copy that costs nothing to read."""
    store = MemoryStore()
    buffer = default_buffer_prototype().buffer
    for file in path.rglob("*"):
        if file.is_file():
            key = file.relative_to(path).as_posix()
            sync(store.set(key, buffer.from_bytes(file.read_bytes())))
    return store


def serve(path: Path, latency_s: float) -> None:
    """Serve a folder until the standard input ends."""
    with FaultServer(path, latency_s=latency_s) as server:
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
