"""Small batches are gathered several at a time, and nobody can tell."""

import itertools
import json
import pickle

import numpy as np
import pytest
import torch

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY, counted
from tests.each_case import each_case
from tests.small_loaders import make_gather, shut_down, small_store
from torchdata_insitu.errors import ClosedError
from torchdata_insitu.nodes import gather_node
from torchdata_insitu.testing import make_store

N = 61


@pytest.fixture(scope="module")
def store():
    values = {"t": counted((N, 2, 3)), "u": counted((N, 2, 3), first=1000), "r": counted((N,))}
    return make_store(values, chunks={"t": (4, 2, 3), "u": (4, 1, 3), "r": (8,)})


def views_of(store):
    arrays = tdi.open_arrays(store)
    return {
        "x": tdi.stack(arrays["t"], arrays["u"]).window(-1, 0),
        "y": arrays["t"].shift(1),
        "r": arrays["r"],
    }


def gather(store, *, transforms=(), **plan):
    pool = tdi.ChunkPool(PLENTY)
    plan = {"batch_size": 3, "block_chunks": 4, "seed": 5, **plan}
    planner = tdi.ChunkPlanner(views_of(store), **plan)
    fetcher = tdi.AsyncChunkFetcher(planner, store, pool)
    return tdi.GatherNode(tdi.ChunkPoolNode(fetcher, pool), batch_transforms=transforms)


def seen(batch):
    return {
        name: (tensor.dtype, tuple(tensor.shape), tensor.numpy().tobytes())
        for name, tensor in batch.items()
    }


def epoch_of(node):
    """What the batches that are left say, and the state after each."""
    return [(seen(batch), json.dumps(node.state_dict())) for batch in node]


def alone(make):
    """What a node says over three epochs that gathers every batch alone."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gather_node, "_BYTES_AT_ONCE", 0)
        with shut_down(make()) as node:
            return three_epochs(node)


def three_epochs(node):
    epochs = []
    for _ in range(3):
        epochs.append(epoch_of(node))
        assert node._n_at_once >= 1
        node.reset(None)
    return epochs


def most_at_once(node):
    """How many batches of a node are made ahead at the most in an epoch."""
    most = 0
    for _ in node:
        most = max(most, 1 + len(node._made))
    return most


PLANS = [
    *({"tail": tail, "batch_size": size} for tail in ("short", "pad", "exact", "drop")
      for size in (1, 3, 16)),
    {"batch_size": 5, "block_chunks": 1},  # nearly every batch straddles two segments
    {"batch_size": 40, "block_chunks": 1},  # and here three
    {"lanes": 2},
    {"lanes": 3, "batch_size": 7},
    {"lanes": 4, "block_chunks": 1, "batch_size": 2},
    {"rank": 1, "world_size": 2, "tail": "pad"},
    {"rank": 0, "world_size": 3, "lanes": 3, "tail": "exact", "batch_size": 2},
    {"shuffle": False},
]  # fmt: skip


@each_case("plan", PLANS)
def test_batches_and_states_are_those_of_batches_made_alone(store, plan):
    expected = alone(lambda: gather(store, **plan))
    with shut_down(gather(store, **plan)) as node:
        assert three_epochs(node) == expected
    assert len({json.dumps(state) for _, state in itertools.chain(*expected)}) > 1


def test_batches_hold_what_is_stored(store):
    t, u, r = (counted((N, 2, 3)), counted((N, 2, 3), first=1000), counted((N,)))
    with shut_down(gather(store)) as node:
        for batch in node:
            at = batch["sample_index"].numpy()
            stacked = [np.stack([t[at + k], u[at + k]], 1) for k in (-1, 0)]
            np.testing.assert_array_equal(batch["x"].numpy(), np.stack(stacked, 1))
            np.testing.assert_array_equal(batch["y"].numpy(), t[at + 1])
            np.testing.assert_array_equal(batch["r"].numpy(), r[at])


@each_case("plan", [{}, {"lanes": 2, "tail": "pad"}, {"batch_size": 5, "block_chunks": 1}])
def test_a_reset_to_the_state_after_any_batch_gives_the_rest(store, plan):
    (expected, *_) = alone(lambda: gather(store, **plan))
    with shut_down(gather(store, **plan)) as node:
        first = json.loads(json.dumps(node.state_dict()))
        for n_before in range(len(expected) + 1):
            node.reset(first)
            before = [seen(batch) for batch in itertools.islice(node, n_before)]
            assert before == [batch for batch, _ in expected[:n_before]]
            # Into the same node, in the middle of what it has made ahead.
            node.reset(json.loads(json.dumps(node.state_dict())))
            assert epoch_of(node) == expected[n_before:]


def test_a_copy_that_is_pickled_within_a_stretch_goes_on_and_carries_no_batches(store):
    (expected, *_) = alone(lambda: gather(store))
    with shut_down(gather(store)) as node:
        for _ in range(3):
            next(node)
        assert len(node._made) > 0
        copied = pickle.loads(pickle.dumps(node))
        assert copied._made is None
        with shut_down(copied):
            copied.reset(node.state_dict())
            assert epoch_of(copied) == expected[3:]
        assert epoch_of(node) == expected[3:]


@pytest.mark.parametrize("end", ["shutdown", "reset"])
def test_what_is_made_ahead_is_dropped(store, end):
    (first, second, _) = alone(lambda: gather(store))
    with shut_down(gather(store)) as node:
        next(node)
        assert len(node._made) > 0
        if end == "shutdown":
            node.shutdown()
            assert node._made is None
            assert node._buffers is None
            with pytest.raises(ClosedError):
                next(node)
        node.reset(None)
        assert not node._made
        # A batch was handed out, so that the next epoch begins.
        assert epoch_of(node) == second
        assert [batch for batch, _ in first] != [batch for batch, _ in second]


def test_writing_into_a_batch_changes_no_other(store):
    (expected, *_) = alone(lambda: gather(store, tail="pad"))
    with shut_down(gather(store, tail="pad")) as node:
        for batch, (values, _) in zip(node, expected, strict=True):
            assert seen(batch) == values
            for tensor in batch.values():
                tensor.fill_(1)
                assert tensor.is_contiguous()


def test_a_batch_of_a_stretch_that_is_kept_keeps_its_values(store):
    """Of each stretch another one is kept, while the memory of the others is used again."""
    with shut_down(gather(store, batch_size=1)) as node:
        kept = []
        for epoch in range(5):
            for number, batch in enumerate(node):
                if number % 7 == epoch:
                    kept.append((batch, seen(batch)))
                else:
                    for tensor in batch.values():
                        tensor.fill_(0)
            node.reset(None)
        for batch, values in kept:
            assert seen(batch) == values


def test_a_part_of_a_batch_keeps_the_memory_of_its_stretch(store):
    """Nothing but one element of one tensor refers to it."""
    with shut_down(gather(store, batch_size=1)) as node:
        batch = next(node)
        element = batch["x"][0, 0, 0, 0, 0]
        expected = element.item()
        del batch
        for _ in range(3):
            for other in node:
                other["x"].fill_(-1)
            node.reset(None)
        assert element.item() == expected


def draw_bytes(store):
    with shut_down(gather(store)) as node:
        return node.draw_bytes


@each_case("batch_size, n_fit", itertools.product([1, 2, 3], [0, 0.99, 1, 1.99, 2, 5, 16, 1000]))
def test_no_more_is_made_at_once_than_fits(store, batch_size, n_fit):
    with pytest.MonkeyPatch.context() as patched:
        n_bytes = int(n_fit * batch_size * draw_bytes(store))
        patched.setattr(gather_node, "_BYTES_AT_ONCE", n_bytes)
        with shut_down(gather(store, batch_size=batch_size, block_chunks=100)) as node:
            most = most_at_once(node)
            sizes = [a.nbytes for kept in node._buffers._kept.values() for a in kept._arrays[:1]]
        assert most == max(1, min(int(n_fit), 16))
        assert sum(sizes) == most * batch_size * draw_bytes(store)


def test_it_says_how_many_batches_are_made_and_none_that_await_a_transform(store):
    with shut_down(gather(store)) as node:
        assert node.n_ready == 0
        ready = []
        for _ in node:
            ready.append(node.n_ready)
            assert node.n_ready == len(node._made)
        assert max(ready) > 1
        assert ready[-1] == 0
        node.reset(None)
        assert node.n_ready == 0
    with shut_down(gather(store, transforms=[dict])) as node:
        assert {node.n_ready for _ in node} == {0}


def test_what_is_made_at_once_takes_at_most_four_mebibytes_and_large_batches_are_alone():
    assert gather_node._BYTES_AT_ONCE <= 4 << 20
    assert gather_node._MOST_AT_ONCE <= 16
    for shape, batch_size, most in (
        ((16, 4, 4), 1, 16),
        ((16, 256, 256), 2, 7),
        ((16, 256, 256), 4, 3),
        ((8, 400, 400), 2, 3),
        ((3, 730, 730), 1, 1),
    ):
        large = make_store({"t2m": np.ones(shape, "f4")}, chunks=shape)
        with shut_down(make_gather(large, batch_size=batch_size)) as node:
            assert most_at_once(node) == most
            assert most == 1 or most * batch_size * node.draw_bytes <= 4 << 20


def test_transforms_see_the_cursor_the_random_numbers_and_the_samples_of_their_batch(store):
    def make():
        def note(batch, rng):
            anchors = batch["sample_index"]
            drawn = rng.uniform(shape=(2,))
            return {**batch, "noise": drawn, "twice": torch.as_tensor(anchors * 2)}

        def fail_not(batch):
            return {**batch, "x": batch["x"] + 1}

        return gather(store, transforms=[note, fail_not], tail="pad")

    expected = alone(make)
    with shut_down(make()) as node:
        assert three_epochs(node) == expected
    noises = [batch["noise"] for batch, _ in itertools.chain(*expected)]
    assert len(set(noises)) == len(noises)


def test_transforms_are_told_the_place_of_their_own_batch(store, monkeypatch):
    met = []
    apply = gather_node.BatchTransforms.apply

    def noted(self, batch, where, samples):
        met.append((where, samples.tolist(), batch["sample_index"].tolist()))
        return apply(self, batch, where, samples)

    monkeypatch.setattr(gather_node.BatchTransforms, "apply", noted)
    with shut_down(gather(store, transforms=[dict])) as node:
        for batch in node:
            _, samples, indices = met[-1]
            assert samples == indices == batch["sample_index"].tolist()
            assert len(met) == len({where.position for where, *_ in met})
        positions = [where.position for where, *_ in met]
    assert positions == sorted(positions)
    assert positions[:3] == [0, 3, 6]


def test_a_transform_that_fails_within_a_stretch_fails_at_its_batch(store):
    (expected, *_) = alone(lambda: gather(store))
    for number in range(len(expected)):
        calls = itertools.count()

        def fails(batch, calls=calls, number=number):
            if next(calls) == number:
                raise LookupError(number)
            return batch

        with shut_down(gather(store, transforms=[fails])) as node:
            before = [(seen(next(node)), json.dumps(node.state_dict())) for _ in range(number)]
            assert before == expected[:number]
            with pytest.raises(LookupError):
                next(node)
            node.reset(node.state_dict())
            assert epoch_of(node) == expected[number:]


def test_page_locked_memory_is_that_of_one_batch(store, monkeypatch):
    asked = []

    def pageable(shapes):
        asked.append({name: shape for name, (shape, _) in shapes.items()})
        tensors = {
            name: torch.empty(shape, dtype=gather_node_dtype(dtype))
            for name, (shape, dtype) in shapes.items()
        }
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        return gather_node.BatchMemory(arrays, tensors)

    expected = alone(lambda: gather(store))
    monkeypatch.setattr(gather_node, "page_locked", pageable)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    with shut_down(gather(store)) as plain:
        node = tdi.GatherNode(plain.source, pin_memory=True)
        assert three_epochs(node) == expected
    assert {shapes["sample_index"] for shapes in asked} == {(3,)}
    assert len(asked) >= len(expected[0])
    assert node._n_at_once == 1


def gather_node_dtype(dtype):
    return torch.from_numpy(np.empty(0, dtype)).dtype


def test_a_read_that_fails_does_so_at_the_batch_that_needs_it(tmp_path):
    folder = small_store(path=tmp_path)
    (tmp_path / "t2m/c/3/0/0").write_bytes(b"damaged")
    ends = []
    for n_bytes in (0, gather_node._BYTES_AT_ONCE):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(gather_node, "_BYTES_AT_ONCE", n_bytes)
            with shut_down(make_gather(folder, batch_size=2, block_chunks=1)) as node:
                got = []
                with pytest.raises(tdi.errors.DecodeError):
                    got.extend(seen(batch) for batch in node)
                ends.append((got, node.state_dict()))
    assert ends[0] == ends[1]
