import numpy as np
import pytest
import torch
import zarr

import torchdata_insitu as tdi
from tests.small_loaders import (
    PLENTY,
    FailsAt,
    N,
    all_ids,
    flat,
    ids,
    make_gather,
    make_loader,
    shut_down,
    small_store,
    values,
    views_of,
)
from torchdata_insitu.errors import ClosedError, PlanError
from torchdata_insitu.testing import make_store


def test_a_batch_is_a_plain_dictionary_of_tensors_of_its_own():
    store = make_store({"t2m": (10, 2, 3)}, chunks=(4, 2, 3), dtype=">f4", zarr_format=2)
    with shut_down(make_gather(store)) as node:
        for batch in node:
            assert type(batch) is dict
            assert list(batch) == ["x", "sample_index"]
            assert batch["sample_index"].dtype == torch.int64
            assert batch["x"].dtype == torch.float32
            for tensor in batch.values():
                assert tensor.is_contiguous()
                array = tensor.numpy()
                assert array.flags.writeable
                assert array.dtype.isnative
                for region in node.source.pool._residency.arenas:
                    assert not np.shares_memory(array, region.region.rows)
            assert values(batch) == ids(batch)


def test_views_come_in_the_order_they_were_given_each_with_its_values():
    store = make_store(
        {"t": (9, 2), "u": (9, 2), "rain": (9,)}, chunks={"t": (2, 2), "u": (3, 1), "rain": (5,)}
    )
    arrays = tdi.open_arrays(store)
    views = {
        "y": arrays["t"].shift(1),
        "x": tdi.stack(arrays["t"], arrays["u"]).window(-1, 0),
        "r": arrays["rain"],
    }
    whole = {name: zarr.open_array(store, path=name)[:] for name in arrays}
    with make_loader(store, views, batch_size=3) as loader:
        for batch in loader:
            assert list(batch) == ["y", "x", "r", "sample_index"]
            at = np.array(ids(batch))
            assert batch["y"].tolist() == whole["t"][at + 1].tolist()
            assert batch["r"].tolist() == whole["rain"][at].tolist()
            windows = [[whole["t"][at + k], whole["u"][at + k]] for k in (-1, 0)]
            assert batch["x"].tolist() == np.array(windows).transpose(2, 0, 1, 3).tolist()


@pytest.mark.parametrize("tail", ["short", "drop", "pad", "exact"])
def test_valid_is_in_every_batch_if_draws_can_be_copies(tail):
    with make_loader(tail=tail, rank=1, world_size=2, batch_size=4) as loader:
        batches = list(loader)
    assert len(batches) > 0
    for batch in batches:
        assert ("valid" in batch) == (tail in {"pad", "exact"})
    if tail == "pad":
        assert [batch["valid"].sum().item() for batch in batches] == [4, 4, 3]
        assert batches[-1]["valid"].dtype == torch.bool
        assert ids(batches[-1])[3] == ids(batches[-1])[2]


def test_batch_sizes_are_those_of_the_tail():
    sizes = {"short": [4] * 5 + [2], "drop": [4] * 5, "pad": [4] * 6, "exact": [4] * 5 + [2]}
    for tail, expected in sizes.items():
        with make_loader(tail=tail) as loader:
            assert [len(batch["x"]) for batch in loader] == expected


def test_sample_index_can_be_renamed_and_left_out():
    with make_loader(sample_index="time") as loader:
        assert list(loader.peek()) == ["x", "time"]
        assert sorted(n for batch in loader for n in batch["time"].tolist()) == list(range(N))
    with make_loader(sample_index=None) as loader:
        assert list(loader.peek()) == ["x"]


@pytest.mark.parametrize(
    "name, options, taken",
    [
        ("sample_index", {}, "sample_index"),
        ("time", {"sample_index": "time"}, "time"),
        ("valid", {"tail": "pad"}, "valid"),
        ("valid", {"tail": "exact"}, "valid"),
    ],
)
def test_a_view_cannot_have_the_name_of_what_every_batch_has(name, options, taken):
    store = small_store()
    with pytest.raises(PlanError, match=f"a view is named '{taken}'"):
        make_loader(store, views_of(store, name), **options)


def test_a_view_may_have_a_name_that_nothing_else_has():
    store = small_store()
    for name, options in (
        ("valid", {"tail": "short"}),
        ("sample_index", {"sample_index": "anchor"}),
        ("sample_index", {"sample_index": None}),
    ):
        with make_loader(store, views_of(store, name), **options) as loader:
            assert name in loader.peek()


def test_sample_index_and_valid_need_two_names():
    with pytest.raises(PlanError, match="sample_index is 'valid'"):
        make_loader(sample_index="valid", tail="pad")
    with make_loader(sample_index="valid", tail="drop") as loader:
        assert len(loader.peek()["valid"]) == 4


def test_a_changed_batch_changes_no_later_one():
    """One chunk is resident through many batches, and is read again in the next epoch."""

    def spoil(batch):
        for tensor in batch.values():
            tensor.zero_()

    with make_loader(batch_size=1, block_chunks=6, budget_bytes=PLENTY) as loader:
        for _ in range(3):
            seen = []
            for batch in loader:
                seen += ids(batch)
                assert values(batch) == ids(batch)
                spoil(batch)
            assert sorted(seen) == list(range(N))


def test_batches_that_are_kept_keep_their_values():
    with make_loader() as loader:
        kept = [batch for _ in range(3) for batch in loader]
    assert [values(batch) for batch in kept] == all_ids(kept)
    assert sorted(flat(all_ids(kept))) == sorted(3 * list(range(N)))


def test_transforms_are_applied_in_order():
    def double(batch):
        return {**batch, "x": batch["x"] * 2}

    def add_one(batch):
        return {**batch, "x": batch["x"] + 1}

    with make_loader(batch_transforms=[double, add_one]) as loader:
        for batch in loader:
            assert values(batch) == pytest.approx([2 * n + 1 / 6 for n in ids(batch)])


def test_a_transform_that_returns_nothing_is_found_out():
    def forgets_to_return(batch):
        batch["x"].mul_(2)

    with (
        make_loader(batch_transforms=[forgets_to_return]) as loader,
        pytest.raises(PlanError, match=r"forgets_to_return.* returned None: return the batch"),
    ):
        next(iter(loader))


def test_a_batch_whose_transform_failed_is_the_next_one():
    with shut_down(make_gather()) as plain:
        expected = all_ids(plain)
    fails = FailsAt(3)
    with shut_down(make_gather(transforms=[fails])) as node:
        first = [ids(next(node)) for _ in range(2)]
        state = node.state_dict()
        for _ in range(2):
            with pytest.raises(LookupError) as raised:
                next(node)
            assert raised.value is fails.error
        assert node.state_dict() == state
        node.reset(node.state_dict())
        assert first + all_ids(node) == expected


def test_a_draw_is_as_large_as_what_is_copied_for_it():
    store = small_store()
    with make_loader(store, {"x": views_of(store)["x"].window(0, 1)}, tail="pad") as loader:
        batch = loader.peek()
        size = sum(tensor.nbytes for tensor in batch.values())
        assert loader.chain.gather.draw_bytes == size / len(batch["x"]) == 2 * 24 + 8 + 1


def test_chunks_given_back_by_another_thread_while_a_batch_is_made(monkeypatch):
    """Thread B shuts the chain down while thread A copies: the copy may hold anything."""
    with make_loader(prefetch_factor=0) as loader:
        copied = tdi.GatherNode._copy

        def interrupted(self, resident, *rest):
            resident.fetched.pool_pass.close()
            copied(self, resident, *rest)

        monkeypatch.setattr(tdi.GatherNode, "_copy", interrupted)
        with pytest.raises(ClosedError, match="given back"):
            next(iter(loader))


def test_an_error_in_a_transform_gives_the_chunks_back():
    def broken(batch):
        raise RuntimeError

    with make_loader(prefetch_factor=0, batch_transforms=[broken]) as loader:
        node = loader.node
        with pytest.raises(RuntimeError):
            next(node)
        assert node.source.pool.n_passes == 0
