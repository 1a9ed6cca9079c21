"""Measure the peak memory of an epoch against what was promised.

Usage: `python -m benchmarks.memory --layouts c8 wb2 --stores local loop http`. Each figure is of a
process of its own: the high-water mark after two shuffled epochs, minus the one after the imports
and a loader of one chunk of the same shape. It is set against the budget, which is fixed, the
encoded bytes that may be in flight, and the batches that are under way.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

import torch
from zarr.abc.store import Store

import torchdata_insitu as tdi
from benchmarks.engines.engine import BATCH_SIZE
from benchmarks.fresh_process import call_in_fresh_process
from benchmarks.layouts import LAYOUTS, make_layout
from benchmarks.slow_stores import LATENCIES_MS, slow_store
from benchmarks.stored_keys import stored_keys

MAX_INFLIGHT = 32
# Requests under way, and as many reads that wait to be decoded.
MOST_ENCODED = 2 * MAX_INFLIGHT
PREFETCH_FACTOR = 2
# Those the prefetcher keeps, the one it makes, and the one the consumer has.
N_BATCHES = PREFETCH_FACTOR + 2
STORES = ("local", *LATENCIES_MS)
_LATENCY_S = 0.001
_OWN_STORES = [name for name, layout in LAYOUTS.items() if layout.store is None]


def main() -> None:
    """Measure in one process each and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layouts", nargs="+", choices=_OWN_STORES, default=["c8"])
    parser.add_argument("--stores", nargs="+", choices=STORES, default=["local"])
    parser.add_argument("--blocks", type=float, default=2.0, help="budget, in floors of the pass")
    parser.add_argument("--folder", type=Path, default=Path("build/layouts"))
    arguments = parser.parse_args()
    print("layout store      budget MB   in flight MB   batches MB   peak MB   peak/promised")
    for layout in arguments.layouts:
        path = make_layout(layout, arguments.folder)
        for kind in arguments.stores:
            found = call_in_fresh_process(measure, path, kind, arguments.blocks)
            promised = found["budget"] + found["in_flight"] + found["batches"]
            print(
                f"{layout:<6} {kind:<8} {found['budget'] / 1e6:>11.1f} "
                f"{found['in_flight'] / 1e6:>14.1f} {found['batches'] / 1e6:>12.1f} "
                f"{found['peak'] / 1e6:>9.1f} {found['peak'] / promised:>15.2f}"
            )


def measure(path: Path, kind: str, blocks: float) -> dict[str, int]:
    """Bytes promised, and the peak of two epochs beyond that of a loader of one chunk."""
    if kind == "local":
        return measure_store(tdi.open_store(path), path, blocks)
    with slow_store(path, kind, _LATENCY_S, in_memory=False) as slow, slow.while_read():
        return measure_store(slow.store, path, blocks)


def measure_store(store: Store, path: Path, blocks: float) -> dict[str, int]:
    """The same, of a store that is open."""
    arrays = tdi.open_arrays(store, ["a", "b"])
    floor = loader_of(store, arrays, "auto", None).floor_bytes
    longest = max(array.rows_per_chunk for array in arrays.values())
    one_chunk = tdi.split_by_range(arrays, {"one": (0, longest)}, gap=0)["one"]
    # Warm-up: libraries, threads and buffers that any loader has.
    run(loader_of(store, arrays, floor, one_chunk))
    before = high_water_mark()
    budget = int(blocks * floor)
    loader = loader_of(store, arrays, budget, None)
    batch_bytes = BATCH_SIZE * loader.chain.gather.draw_bytes
    run(loader, n_epochs=2)
    stored = max((path / key.key).stat().st_size for key in stored_keys(path))
    return {
        "budget": budget,
        "in_flight": MOST_ENCODED * stored,
        "batches": N_BATCHES * batch_bytes,
        "peak": high_water_mark() - before,
    }


def loader_of(
    store: Store, arrays: Mapping[str, tdi.ArrayGeometry], budget: int | str, split: object
) -> tdi.InSituLoader:
    """The loader that is measured."""
    return tdi.build_loader(
        store,
        arrays,
        split=split,  # type: ignore[arg-type]
        batch_size=BATCH_SIZE,
        budget_bytes=budget,
        max_inflight=MAX_INFLIGHT,
        prefetch_factor=PREFETCH_FACTOR,
        seed=1,
    )


def run(loader: tdi.InSituLoader, n_epochs: int = 1) -> None:
    """Epochs with a consumer that looks at every batch and keeps none."""
    with loader:
        for _ in range(n_epochs):
            for batch in loader:
                torch.sum(batch["sample_index"])


def high_water_mark() -> int:
    """The most memory that this process had, in bytes (`VmHWM` of Linux)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
