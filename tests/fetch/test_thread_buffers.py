"""Buffers are reused, grow, and are not shared between threads."""

import mmap
import threading

import numpy as np

from torchdata_insitu.fetch.thread_buffers import ThreadBuffers


def address(buffer):
    return buffer.__array_interface__["data"][0]


def test_memory_is_used_again():
    buffers = ThreadBuffers()
    assert address(buffers.encoded(100)) == address(buffers.encoded(50))
    assert address(buffers.decoded(100)) == address(buffers.decoded(50))
    assert address(buffers.cast(100)) == address(buffers.cast(50))


def test_large_memory_begins_on_a_page():
    buffers = ThreadBuffers()
    for memory in (buffers.encoded, buffers.decoded, buffers.cast):
        for n_bytes in (mmap.PAGESIZE, 1 << 16, (1 << 20) + 1):
            assert address(memory(n_bytes)) % mmap.PAGESIZE == 0


def test_scratch_has_exactly_the_size_asked_for():
    buffers = ThreadBuffers()
    for scratch in (buffers.decoded, buffers.cast):
        assert [scratch(n).size for n in (10, 100, 10)] == [10, 100, 10]


def test_larger_buffer_takes_over_what_was_read():
    buffers = ThreadBuffers()
    buffers.encoded(10)[:10] = np.arange(10)
    size = buffers.encoded(10).size
    larger = buffers.encoded(2 * size, keep=10)
    assert larger.size >= 2 * size
    assert larger[:10].tolist() == list(range(10))


def test_threads_have_memory_of_their_own():
    buffers = ThreadBuffers()
    ours = [buffers.encoded(10), buffers.decoded(10)]
    theirs = []

    def ask():
        theirs.extend([buffers.encoded(10), buffers.decoded(10)])

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    for mine, other in zip(ours, theirs, strict=True):
        assert not np.shares_memory(mine, other)
