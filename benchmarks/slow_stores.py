"""Stores whose every read takes its time, over the files of a store that does not.

`loop` is read on Zarr's event loop and waits there. `http` is a server in a process of its own,
read through obstore; it shares the cores. `nfs` are local files: each system call that brings bytes
of one takes longer, as on a network file system, and the one that finds its end does not.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import MemoryStore

import torchdata_insitu as tdi
from torchdata_insitu.testing import FaultServer, LatencyStore

LATENCIES_MS = {"loop": 30.0, "http": 30.0, "nfs": 5.0}
"""By kind of store, what one read takes unless another time is asked for."""


@dataclass(frozen=True)
class SlowStore:
    """A store, and while it is slow."""

    store: Store
    """What is read."""
    while_read: Callable[[], AbstractContextManager[None]] = nullcontext
    """Around everything that reads it; other local files are as slow inside."""


@contextmanager
def slow_store(
    path: Path, kind: str, latency_s: float, *, in_memory: bool = True
) -> Iterator[SlowStore]:
    """A store whose every read of a chunk takes `latency_s` at least.

    Args:
        path: What is read in the end.
        kind: One of `LATENCIES_MS`.
        latency_s: Seconds of one read.
        in_memory: Let a store of kind `loop` hold a copy, which costs nothing to read.
    """
    if kind == "nfs":
        yield SlowStore(tdi.open_store(path), partial(slow_files, latency_s))
    elif kind == "loop":
        yield SlowStore(
            LatencyStore(copy_of(path) if in_memory else tdi.open_store(path), latency_s)
        )
    else:
        with served(path, latency_s) as url:
            yield SlowStore(tdi.open_store(url))


@contextmanager
def slow_files(latency_s: float) -> Iterator[None]:
    """Let every read of a file wait that brings bytes.

    Raises:
        RuntimeError: None did, so that files are read in another way and nothing was slow.
    """
    n_slow: list[None] = []

    def slow(read: Callable[..., int], *arguments: Any) -> int:
        n_bytes = read(*arguments)
        if n_bytes:
            time.sleep(latency_s)
            n_slow.append(None)
        return n_bytes

    with (
        mock.patch("os.readv", partial(slow, os.readv)),
        mock.patch("os.preadv", partial(slow, os.preadv)),
    ):
        yield
    if not n_slow:
        raise RuntimeError("no read of a file was slow: they go past os.readv and os.preadv")


def copy_of(path: Path) -> Store:
    """A copy that costs nothing to read."""
    store = MemoryStore()
    buffer = default_buffer_prototype().buffer
    for file in path.rglob("*"):
        if file.is_file():
            key = file.relative_to(path).as_posix()
            sync(store.set(key, buffer.from_bytes(file.read_bytes())))
    return store


@contextmanager
def served(path: Path, latency_s: float) -> Iterator[str]:
    """The URL of a server of its own process over a folder.

    Raises:
        OSError: It cannot be talked to.
    """
    command = [sys.executable, "-m", "benchmarks.slow_stores", str(path), str(latency_s)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        told, kept_open = server.stdout, server.stdin
        if told is None or kept_open is None:
            raise OSError("the server has no pipes")
        try:
            yield told.readline().strip()
        finally:
            kept_open.close()


def main() -> None:
    """Serve a folder until the standard input ends, and say where."""
    parser = argparse.ArgumentParser(description="serve a folder slowly")
    parser.add_argument("path", type=Path)
    parser.add_argument("latency_s", type=float)
    arguments = parser.parse_args()
    with FaultServer(arguments.path, latency_s=arguments.latency_s) as server:
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
