"""What batches are made in: recycled where it is pageable, torch's own where it is page-locked."""

import gc
import queue
import threading

import numpy as np
import pytest
import torch

import torchdata_insitu as tdi
from tests.small_loaders import (
    N,
    all_ids,
    flat,
    ids,
    make_gather,
    make_loader,
    shut_down,
    small_store,
    values,
)
from torchdata_insitu.errors import PlanError
from torchdata_insitu.nodes.batch_memory import page_locked


def loader_of_many(**options):
    return make_loader(small_store(400), **{"block_chunks": 10, **options})


def n_made(loader):
    """Arrays made for batches so far, two a batch."""
    return loader.chain.gather._buffers.n_made


@pytest.mark.parametrize("prefetch_factor", [0, 1, 2, 4])
def test_once_warm_no_batch_is_made_in_fresh_memory(prefetch_factor):
    """400 samples in batches of 7: the last one, of 1, is made in the memory of a full one."""
    with loader_of_many(prefetch_factor=prefetch_factor, batch_size=7) as loader:
        for batch in loader:
            assert values(batch) == ids(batch)
        # One made, those ahead, one handed over, and one that the loop still has.
        assert n_made(loader) <= 2 * (prefetch_factor + 3)
        assert len(batch["x"]) == 1
        del batch
        warm = n_made(loader)
        for _ in range(2):
            for batch in loader:
                assert values(batch) == ids(batch)
        assert n_made(loader) <= max(warm, 2 * (prefetch_factor + 3))


@pytest.mark.parametrize("n_held", [1, 5, 12])
def test_a_consumer_that_holds_some_batches_gets_no_more_memory_than_that(n_held):
    with loader_of_many(prefetch_factor=0) as loader:
        held = []
        for batch in loader:
            held = [*held, batch][-n_held:]
            assert [values(one) for one in held] == [ids(one) for one in held]
        assert n_made(loader) <= 2 * (n_held + 2)


def test_a_consumer_that_collects_batches_and_drops_them_at_once_finds_their_memory():
    with loader_of_many(prefetch_factor=0, batch_size=2) as loader:
        held = []
        for batch in loader:
            held.append(batch)
            if len(held) == 8:
                assert [values(one) for one in held] == [ids(one) for one in held]
                held.clear()
        assert n_made(loader) <= 2 * 10


def test_batches_dropped_by_other_threads_are_whole_until_they_are():
    """Threads B look at batches and drop them while thread A gathers the next ones."""
    handed, wrong = queue.SimpleQueue(), []

    def look():
        while (batch := handed.get()) is not None:
            expected = ids(batch)
            wrong.extend([expected] if values(batch) != expected else [])
            kept = batch["x"].numpy()[::2]
            del batch
            wrong.extend([expected] if (kept[:, 0, 0] / 6).tolist() != expected[::2] else [])

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        with loader_of_many(batch_size=3) as loader:
            for _ in range(5):
                for batch in loader:
                    handed.put(batch)
    finally:
        for _ in threads:
            handed.put(None)
        for thread in threads:
            thread.join(60)
    assert wrong == []


def test_a_transform_that_keeps_a_tensor_keeps_its_memory():
    kept = []

    def keep(batch):
        kept.append(batch["x"])
        return {"mean": batch["x"].mean(), "sample_index": batch["sample_index"]}

    with make_loader(batch_transforms=[keep], seed=1) as loader:
        order = all_ids(loader)
    assert [values({"x": tensor}) for tensor in kept] == order
    assert len({tensor.data_ptr() for tensor in kept}) == len(order)


def test_a_tensor_that_autograd_needs_keeps_its_memory():
    weight = torch.ones(1, requires_grad=True)
    with make_loader(prefetch_factor=0, shuffle=False) as loader:
        losses = [(weight * batch["x"]).sum() for batch in loader]
    torch.stack(losses).sum().backward()
    assert weight.grad.item() == np.arange(6 * N).sum()


@pytest.mark.usefixtures("batches_one_by_one")
def test_memory_is_never_used_again_where_that_is_turned_off(monkeypatch):
    monkeypatch.setenv("TORCHDATA_INSITU_BUFFER_REUSE", "0")
    with make_loader(prefetch_factor=0) as loader:
        n_batches = sum(1 for _ in loader)
        assert n_made(loader) == 2 * n_batches


def test_a_chain_that_was_shut_down_holds_no_batch_memory():
    with shut_down(make_gather()) as node:
        batch = next(node)
        assert node._buffers is not None
        node.shutdown()
        assert node._buffers is None
        assert values(batch) == ids(batch)


@pytest.fixture
def locked(monkeypatch):
    """An accelerator as far as page-locking goes: the addresses of what was page-locked."""
    addresses = []
    empty = torch.empty

    def recorded(*shape, pin_memory=False, **options):
        tensor = empty(*shape, **options)
        if pin_memory:
            addresses.append((tensor.data_ptr(), tensor.nbytes))
        return tensor

    def is_pinned(tensor):
        start = tensor.data_ptr()
        return any(first <= start < first + size for first, size in addresses)

    def pin(tensor):
        return recorded(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", recorded)
    monkeypatch.setattr(torch.Tensor, "is_pinned", is_pinned)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    return addresses


@pytest.mark.parametrize("pin_memory", [True, "auto"])
def test_batches_are_gathered_into_page_locked_memory(locked, pin_memory):
    with make_loader(pin_memory=pin_memory, seed=1, tail="exact") as loader:
        batches = list(loader)
    assert sorted(flat(all_ids(batches))) == list(range(N))
    for batch in batches:
        assert values(batch) == ids(batch)
        assert all(tensor.is_pinned() for tensor in batch.values())
        assert all(tensor.is_contiguous() for tensor in batch.values())
    # Three tensors a batch, and none of them copied into another.
    assert len(locked) == 3 * len(batches)
    assert loader.chain.gather._buffers is None


def test_page_locked_memory_is_taken_anew_for_each_batch(locked):
    """Torch alone knows which streams still copy out of it."""
    with make_loader(pin_memory=True, prefetch_factor=0) as loader:
        addresses = []
        for batch in loader:
            assert values(batch) == ids(batch)
            addresses.append(batch["x"].data_ptr())
            del batch
    assert len(locked) == 2 * len(addresses)


def test_what_a_transform_made_is_page_locked_after_it(locked):
    def double(batch):
        return {**batch, "x": batch["x"] * 2}

    with make_loader(pin_memory=True, batch_transforms=[double]) as loader:
        batches = list(loader)
    assert all(tensor.is_pinned() for batch in batches for tensor in batch.values())
    assert len(locked) == 3 * len(batches)


def test_without_an_accelerator_memory_is_pageable(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with shut_down(make_gather()) as node:
        node.pin_memory = True
        batch = next(node)
        assert values(batch) == ids(batch)
        assert node._buffers is not None


def test_a_wish_that_is_neither_yes_nor_no_is_refused():
    with pytest.raises(PlanError, match="pin_memory is 'auto'"):
        tdi.GatherNode(make_gather().source, pin_memory="auto")


def test_the_accelerator_is_looked_for_at_the_first_batch(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: 1 / 0)
    node = make_gather()
    node.pin_memory = True
    node.reset(node.state_dict())
    with shut_down(node), pytest.raises(ZeroDivisionError):
        next(node)


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "u8", "f2", "c8"])
def test_every_type_has_page_locked_memory(locked, dtype):
    memory = page_locked({"x": ((4, 2), np.dtype(dtype))})
    memory.arrays["x"][:] = np.ones((4, 2), dtype)
    assert memory.batch(0, 3)["x"].numpy().tolist() == np.ones((3, 2), dtype).tolist()
    assert memory.batch(0, 4)["x"].is_pinned()


@pytest.mark.gpu
def test_page_locked_batches_reach_the_device_whole():
    """Copies that do not block, from batches that are dropped at once."""
    if not torch.accelerator.is_available():
        pytest.skip("there is no accelerator")
    device = torch.accelerator.current_accelerator()
    with loader_of_many(pin_memory=True, batch_size=16) as loader:
        for _ in range(3):
            on_device = []
            for batch in loader:
                assert all(tensor.is_pinned() for tensor in batch.values())
                on_device.append(
                    {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
                )
                del batch
            gc.collect()
            torch.accelerator.synchronize()
            for batch in on_device:
                assert values(batch) == pytest.approx(ids(batch))
