"""Measure a cold epoch over a store that takes its time, against the ideal.

Usage: `python -m benchmarks.latency --layouts c8 wb2 --inflight 8 32`. The ideal is requests x
latency / `max_inflight`, or the same epoch from local files where that takes longer. The server of
kind `http` shares the cores, so that its ideal is also no shorter than bare reads of the same keys
on `max_inflight` threads, with nothing decoded; `benchmarks/slow_stores.py` says what the kinds
are. Each layout and kind is measured in a process of its own, in pairs of epochs; the first epoch
of a loader is shown apart from those that follow it.
"""

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import obstore
from zarr.storage import ObjectStore

import torchdata_insitu as tdi
from benchmarks.engines.engine import BATCH_SIZE
from benchmarks.fresh_process import call_in_fresh_process
from benchmarks.layouts import LAYOUTS, make_layout
from benchmarks.ratios import Spread
from benchmarks.slow_stores import LATENCIES_MS, SlowStore, slow_store
from benchmarks.stored_keys import stored_keys

_OWN_STORES = [name for name, layout in LAYOUTS.items() if layout.store is None]


@dataclass(frozen=True)
class Pair:
    """An epoch over a slow store, and what it is held against."""

    n_requests: int
    """That the epoch made."""
    ideal_s: float
    """What it cannot be faster than."""
    epoch_s: float
    """What it took."""


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layouts", nargs="+", choices=_OWN_STORES, default=["c8"])
    parser.add_argument("--kinds", nargs="+", choices=LATENCIES_MS, default=list(LATENCIES_MS))
    parser.add_argument("--inflight", nargs="+", type=int, default=[8, 32])
    parser.add_argument("--latency-ms", type=float, help=f"of one read; else {LATENCIES_MS}")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("build/layouts"))
    arguments = parser.parse_args()
    print("layout kind   max_inflight requests   ideal s   epoch s   epoch/ideal (min-max)   first")
    for layout in arguments.layouts:
        path = make_layout(layout, arguments.folder)
        for kind in arguments.kinds:
            latency_s = (arguments.latency_ms or LATENCIES_MS[kind]) / 1e3
            for max_inflight in arguments.inflight:
                pairs = call_in_fresh_process(
                    measure, path, kind, latency_s, max_inflight, arguments.repeats
                )
                print(f"{layout:<6} {kind:<6} {max_inflight:>12} {summary(pairs)}", flush=True)


def measure(path: Path, kind: str, latency_s: float, max_inflight: int, repeats: int) -> list[Pair]:
    """Epochs from local files and from the slow store in turns, and one pair before these."""
    options = {"batch_size": BATCH_SIZE, "seed": 1, "max_inflight": max_inflight}
    pairs = []
    with slow_store(path, kind, latency_s) as slow:
        near = tdi.build_loader(path, tdi.open_arrays(path), **options)  # type: ignore[arg-type]
        arrays = tdi.open_arrays(slow.store, ["a", "b"])
        far = tdi.build_loader(slow.store, arrays, **options)  # type: ignore[arg-type]
        with near, far:
            for _ in range(repeats + 1):
                near_s, _ = cold_epoch(near, nullcontext())
                far_s, n_requests = cold_epoch(far, slow.while_read())
                bare_s = bare_reads(slow, path, max_inflight)
                waits_s = n_requests * latency_s / max_inflight
                pairs.append(Pair(n_requests, max(near_s, bare_s, waits_s), far_s))
    return pairs


def summary(pairs: Sequence[Pair]) -> str:
    """One line: medians of all pairs but the first, and its epoch over the ideal of the others."""
    first, *others = pairs
    ideal_s = Spread.of([pair.ideal_s for pair in others]).median
    epoch_s = Spread.of([pair.epoch_s for pair in others]).median
    ratios = Spread.of([pair.epoch_s / pair.ideal_s for pair in others])
    return (
        f"{others[0].n_requests:>8} {ideal_s:>9.2f} {epoch_s:>9.2f} "
        f"{ratios!s:>23} {first.epoch_s / ideal_s:>7.2f}"
    )


def bare_reads(slow: SlowStore, path: Path, max_inflight: int) -> float:
    """Seconds to read every key through obstore and do nothing with it; 0 for another store."""
    store = slow.store
    if not isinstance(store, ObjectStore):
        return 0.0
    keys = [key.key for key in stored_keys(path)]
    start = time.perf_counter()
    with ThreadPoolExecutor(max_inflight) as threads:
        for _ in threads.map(lambda key: obstore.get(store.store, key).bytes(), keys):
            pass
    return time.perf_counter() - start


def cold_epoch(
    loader: tdi.InSituLoader, while_read: AbstractContextManager[None]
) -> tuple[float, int]:
    """Seconds and requests of an epoch that finds nothing resident."""
    loader.chain.pool_node.pool.clear()
    n_before = sum(loader.stats().requests.values())
    with while_read:
        start = time.perf_counter()
        for batch in loader:
            del batch
        epoch_s = time.perf_counter() - start
    return epoch_s, sum(loader.stats().requests.values()) - n_before


if __name__ == "__main__":
    main()
