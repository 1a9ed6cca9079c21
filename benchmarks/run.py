"""Measure a cold epoch against the bare decode of the same keys, side by side.

Usage: ``python benchmarks/run.py --layouts c8 wb2 --repeats 5``. Each repeat times both, one after
the other, after an epoch of each that touched the memory and the files; the table shows medians,
and the ratio is the median of the ratios of the pairs.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import obstore.store
import torch
import zarr
from layouts import LAYOUTS, make_layout

import torchdata_insitu as tdi
from torchdata_insitu.fetch.zarr_decoding import ZarrDecoding

BATCH_SIZE = 32
BLOCK_CHUNKS = 16


@dataclass(frozen=True)
class Times:
    """Seconds of one pair of epochs."""

    ours_s: float
    ceiling_s: float
    first_batch_s: float


def main() -> None:
    """Measure the layouts asked for and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Formatter)
    parser.add_argument("--layouts", nargs="+", choices=sorted(LAYOUTS), default=["c8", "wb2"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("build/layouts"))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    print("layout   ours GB/s   ceiling GB/s   ours/ceiling (min-max)   first batch ms")
    for name in arguments.layouts:
        path = make_layout(name, arguments.folder)
        check_epoch(path)
        times = list(measure(path, arguments.repeats))
        n_bytes = sum(array.sample_bytes * array.n_samples for array in arrays_of(path))
        ratios = sorted(pair.ceiling_s / pair.ours_s for pair in times)
        print(
            f"{name:<8} {n_bytes / 1e9 / _median(pair.ours_s for pair in times):>9.2f} "
            f"{n_bytes / 1e9 / _median(pair.ceiling_s for pair in times):>14.2f} "
            f"{statistics.median(ratios):>14.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}) "
            f"{1e3 * _median(pair.first_batch_s for pair in times):>16.0f}"
        )


def arrays_of(path: Path) -> list[tdi.ArrayGeometry]:
    """The arrays of a store."""
    return list(tdi.open_arrays(path).values())


def build(path: Path) -> tdi.InSituLoader:
    """The loader that is measured, with the defaults people get."""
    return tdi.build_loader(
        path, tdi.open_arrays(path), batch_size=BATCH_SIZE, block_chunks=BLOCK_CHUNKS, seed=1
    )


def check_epoch(path: Path) -> None:
    """Compare every batch of an epoch with plain Zarr indexing: no speed without the values."""
    group = zarr.open_group(path, mode="r")
    expected = {name: array[...] for name, array in group.arrays()}
    seen = []
    with build(path) as loader:
        for batch in loader:
            index = batch["sample_index"].numpy()
            seen.append(index)
            for name, values in expected.items():
                np.testing.assert_array_equal(batch[name].numpy(), values[index])
    n_samples = arrays_of(path)[0].n_samples
    np.testing.assert_array_equal(np.sort(np.concatenate(seen)), np.arange(n_samples))


def measure(path: Path, repeats: int) -> Iterator[Times]:
    """Pairs of epochs, ours and the ceiling in turns; the first pair warms up and is dropped."""
    ceiling = Ceiling(path)
    with build(path) as loader:
        for repeat in range(repeats + 1):
            # Touched memory stays, what was read does not: an epoch over a small layout would
            # find part of its chunks resident.
            loader.chain.pool_node.pool.clear()
            start = time.perf_counter()
            first_s = None
            for batch in loader:
                if first_s is None:
                    first_s = time.perf_counter() - start
                del batch
            ours_s = time.perf_counter() - start
            start = time.perf_counter()
            ceiling.epoch()
            ceiling_s = time.perf_counter() - start
            if repeat:
                yield Times(ours_s, ceiling_s, first_s or 0.0)


class Ceiling:
    """The same keys read by obstore and decoded by Zarr, one thread per core, and nothing else."""

    def __init__(self, path: Path) -> None:
        """List the keys; they are read in store order."""
        self._store = obstore.store.LocalStore(path)
        self._jobs = []
        for name, array in sorted(zarr.open_group(path, mode="r").arrays()):
            decoding = ZarrDecoding(array.metadata, array.chunks)
            files = sorted(file for file in (path / name / "c").rglob("*") if file.is_file())
            keys = [str(file.relative_to(path)) for file in files]
            self._jobs += [(key, decoding, array.chunks) for key in keys]

    def epoch(self) -> None:
        """Decode everything once."""
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            for _ in threads.map(self._decode, self._jobs):
                pass

    def _decode(self, job: tuple[str, ZarrDecoding, tuple[int, ...]]) -> None:
        key, decoding, shape = job
        stored = obstore.get(self._store, key).bytes()
        decoding.decode(np.frombuffer(stored, np.uint8), shape)


class _Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the paragraphs of the description and shows defaults."""


def _median(values: Iterator[float]) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    main()
