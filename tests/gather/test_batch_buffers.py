import collections
import gc
import mmap
import threading
import weakref

import numpy as np
import pytest
import torch

from torchdata_insitu.gather.batch_buffers import BatchBuffers


def make(n_rows=3):
    return BatchBuffers({"x": ((n_rows, 4), np.dtype("f4")), "y": ((n_rows,), np.dtype("i8"))})


def address(arrays):
    return arrays["x"].ctypes.data


def test_memory_is_used_again_when_nothing_refers_to_it():
    buffers = make()
    first = address(buffers.take())
    assert address(buffers.take()) == first
    assert buffers.n_made == 2


def test_memory_begins_on_a_page():
    arrays = make(1024).take()
    assert [array.ctypes.data % mmap.PAGESIZE for array in arrays.values()] == [0, 0]


KEEPERS = {
    "tensor": torch.from_numpy,
    "slice": lambda array: torch.from_numpy(array)[1:],
    "element": lambda array: torch.from_numpy(array).view(-1)[2],
    "detached": lambda array: torch.from_numpy(array).detach(),
    "transposed": lambda array: torch.from_numpy(array).T,
    "expanded": lambda array: torch.from_numpy(array)[:1].expand(9, 4),
    "leaf": lambda array: torch.from_numpy(array).requires_grad_(),
    "storage": lambda array: torch.from_numpy(array).untyped_storage(),
    "numpy": lambda array: torch.from_numpy(array).numpy(),
    "memory view": lambda array: memoryview(torch.from_numpy(array).numpy()),
    "numpy slice": lambda array: array[::2],
    "dlpack": lambda array: torch.from_dlpack(torch.from_numpy(array)),
    "dlpack of numpy": lambda array: np.from_dlpack(torch.from_numpy(array)),
    "dlpack capsule": lambda array: torch.from_numpy(array).__dlpack__(),
    "in a thread": lambda array: run_in_thread(torch.from_numpy(array)),
    "autograd": lambda array: (torch.from_numpy(array) * torch.ones(4, requires_grad=True)).sum(),
}


@pytest.mark.parametrize("n_rows", [3, 3000])
@pytest.mark.parametrize("keep", KEEPERS.values(), ids=KEEPERS)
def test_memory_that_is_seen_outside_is_left_alone(keep, n_rows):
    buffers = make(n_rows)
    arrays = buffers.take()
    arrays["x"][:] = 1
    kept, first = keep(arrays["x"]), address(arrays)
    del arrays
    other = buffers.take()
    assert address(other) != first
    del other, kept
    gc.collect()
    assert address(buffers.take()) == first
    assert buffers.n_made == 3


def test_reuse_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("TORCHDATA_INSITU_BUFFER_REUSE", "0")
    buffers = make()
    first = buffers.take()
    assert address(buffers.take()) != address(first)


def test_keeping_one_array_of_a_batch_does_not_keep_the_others():
    buffers = make()
    kept = [torch.from_numpy(buffers.take()["y"]) for _ in range(20)]
    assert len({tensor.data_ptr() for tensor in kept}) == 20
    assert buffers.n_made == 21


@pytest.mark.parametrize("n_in_flight", [1, 3, 8, 20])
def test_as_many_as_are_in_flight_are_recycled(n_in_flight):
    buffers = make()
    in_flight = collections.deque(maxlen=n_in_flight)
    for _ in range(500):
        in_flight.append(buffers.take())
    assert buffers.n_made <= 2 * (n_in_flight + 1)


def test_a_consumer_that_keeps_every_batch_owns_them():
    buffers = make()
    kept = [buffers.take() for _ in range(100)]
    assert len({address(arrays) for arrays in kept}) == 100
    watched = [weakref.ref(arrays["x"]) for arrays in kept]
    kept.clear()
    buffers.take()
    # Those beyond the number that is recycled were never the buffers' own.
    assert sum(ref() is not None for ref in watched) <= 17


def test_memory_that_nobody_needs_any_longer_is_given_back():
    buffers = make()
    kept = [buffers.take() for _ in range(10)]
    watched = [weakref.ref(arrays["x"]) for arrays in kept]
    kept.clear()
    for _ in range(200):
        buffers.take()
    assert sum(ref() is not None for ref in watched) == 1


@pytest.mark.parametrize("n_held", [2, 5, 8, 15, 16])
def test_a_consumer_that_drops_all_it_holds_at_once_finds_the_memory_again(n_held):
    buffers = make()
    held = []
    for number in range(600):
        held.append(buffers.take())
        if number == 100:
            made = buffers.n_made
        if len(held) == n_held:
            held.clear()
    assert buffers.n_made == made == 2 * n_held


def test_the_first_array_that_is_free_is_taken():
    buffers = make()
    kept = [buffers.take() for _ in range(5)]
    addresses = [address(arrays) for arrays in kept]
    for place in (3, 1):
        kept[place] = None
        assert address(buffers.take()) == addresses[place]
    kept[4] = None
    # Two are free meanwhile, and then three.
    held = [buffers.take() for _ in range(3)]
    assert [address(arrays) for arrays in held] == [addresses[place] for place in (1, 3, 4)]


@pytest.mark.parametrize("n_held", [0, 1, 5])
def test_what_a_window_of_batches_needed_is_kept_and_the_rest_given_back(n_held):
    """What is held for a moment stays for the window that needed it, and no more than one."""
    buffers = make()
    watched = [weakref.ref(arrays["x"]) for arrays in [buffers.take() for _ in range(12)]]
    for number in range(2 * 64):
        held = [buffers.take() for _ in range(n_held + 1)] if number == 70 else buffers.take()
        del held
    made = buffers.n_made
    for _ in range(64):
        buffers.take()
    assert buffers.n_made == made
    assert sum(ref() is not None for ref in watched) <= n_held + 1


@pytest.mark.parametrize("n_held", [17, 40, 64])
def test_beyond_sixteen_free_arrays_are_given_back_at_once(n_held):
    buffers = make()
    held = [buffers.take() for _ in range(n_held)]
    watched = [weakref.ref(arrays["x"]) for arrays in held]
    held.clear()
    taken = buffers.take()
    assert address(taken) == watched[0]().ctypes.data
    assert sum(ref() is not None for ref in watched) == 17


def test_an_array_that_is_in_use_is_never_given_back():
    """A consumer keeps the last ones of many, while the window passes again and again."""
    buffers = make()
    held = [buffers.take() for _ in range(30)]
    for number, arrays in enumerate(held):
        arrays["x"][:] = number
    kept = held[25:]
    del held, arrays
    for _ in range(300):
        other = buffers.take()
        other["x"][:] = -1
    del other
    assert [arrays["x"][0, 0] for arrays in kept] == [25, 26, 27, 28, 29]


def run_in_thread(tensor):
    """A thread that holds the only reference to a tensor."""
    entered, left = threading.Event(), threading.Event()

    def hold(kept):
        entered.set()
        left.wait(20)
        del kept

    thread = threading.Thread(target=hold, args=(tensor,))
    thread.start()
    assert entered.wait(20)
    return Holder(left, thread)


class Holder:
    """Lets the thread go when it is dropped."""

    def __init__(self, left, thread):
        self._left = left
        self._thread = thread

    def __del__(self):
        self._left.set()
        self._thread.join(20)
