"""Loads whole arrays through a fetcher, into slots that hold something else before."""

import contextlib
import threading

import numpy as np

from torchdata_insitu.fetch.chunk_fetcher import ChunkFetcher
from torchdata_insitu.fetch.chunk_load import ChunkLoad
from torchdata_insitu.geometry.metadata import read_arrays

WAIT_S = 20.0


class Loads:
    """Chunks of one array that are being loaded, and how each ended."""

    def __init__(self, array, runs=None):
        self.array = array
        self.runs = list(range(array.n_chunks)) if runs is None else list(runs)
        self.slots = [stale_slot(array) for _ in self.runs]
        self.ends = {}
        self.threads = set()
        self.n_calls = 0
        self.all_ended = threading.Event()
        self._lock = threading.Lock()
        self.loads = [
            ChunkLoad(array, run, 0, slot, self.done)
            for run, slot in zip(self.runs, self.slots, strict=True)
        ]

    def done(self, load, error):
        with self._lock:
            self.n_calls += 1
            self.threads.add(threading.current_thread().name)
            self.ends[load.sample_run] = error
            if len(self.ends) == len(self.runs):
                self.all_ended.set()

    def wait(self):
        assert self.all_ended.wait(WAIT_S), f"{len(self.ends)} of {len(self.runs)} loads ended"
        return self

    @property
    def errors(self):
        return {run: error for run, error in self.ends.items() if error is not None}

    @property
    def values(self):
        """Sample first, the rows of all chunks behind each other."""
        for error in self.errors.values():
            raise error
        bounds = [self.array.sample_chunks.bounds(run) for run in self.runs]
        return np.concatenate(
            [slot[: stop - start] for slot, (start, stop) in zip(self.slots, bounds, strict=True)]
        )


def stale_slot(array):
    """A slot with the bytes of an earlier chunk."""
    slot = np.empty(array.chunk_shape, array.dtype)
    slot.reshape(-1).view(np.uint8)[...] = 0xA5
    return slot


def load(store, *, name=None, runs=None, wait=True, options=None, **geometry):
    """Load chunks of an array; returns the `Loads` after they ended."""
    array = one_array(store, name=name, **geometry)
    with fetching(store, array, **(options or {})) as fetcher:
        loads = Loads(array, runs)
        fetcher.submit(loads.loads)
        return loads.wait()


@contextlib.contextmanager
def fetching(store, *arrays, **options):
    fetcher = ChunkFetcher(store, arrays, **options)
    try:
        yield fetcher
    finally:
        fetcher.close()


def one_array(store, *, name=None, **geometry):
    arrays = read_arrays(store, None if name is None else [name], **geometry)
    (array,) = arrays.values()
    return array
