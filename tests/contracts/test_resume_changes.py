"""What may change at a resume: a test for each row of the table in `docs/guide/resume.md`."""

import pathlib
import re

import pytest
import torchdata.nodes
import zarr

import torchdata_insitu as tdi
from tests.contracts.refusals import refused
from tests.small_loaders import (
    N,
    all_ids,
    flat,
    ids,
    make_gather,
    make_loader,
    small_store,
    state_after,
    take,
    views_of,
)
from torchdata_insitu.errors import BudgetError, StateError
from torchdata_insitu.testing import make_store

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/guide/resume.md"
# Two batches of four.
DONE = 8


@pytest.fixture(scope="module")
def state():
    return state_after(0, 2)


@pytest.fixture(scope="module")
def order():
    """The samples of two epochs."""
    with make_loader() as loader:
        return [flat(all_ids(loader)) for _ in range(2)]


def goes_on(loader, state, order):
    """Whether the loader gives what is left of the epoch, and then the next one."""
    with loader:
        loader.load_state_dict(state)
        return [flat(all_ids(loader)) for _ in range(2)] == [order[0][DONE:], order[1]]


def is_refused(loader, state, *facts):
    """Whether the loader refuses the state with these facts, and stays where it was."""
    with loader:
        before = loader.state_dict()
        with refused(StateError, *facts):
            loader.load_state_dict(state)
        return loader.state_dict() == before


# Rows that may change


def test_batch_size(state, order):
    with make_loader(batch_size=5) as loader:
        loader.load_state_dict(state)
        assert len(loader) == 2 + 3
    assert goes_on(make_loader(batch_size=5), state, order)


def test_number_of_ranks(state, order):
    found = []
    for rank in range(3):
        ranks = {"rank": rank, "world_size": 3, "batch_size": 2, "tail": "exact"}
        with make_loader(**ranks) as loader:
            loader.load_state_dict(state)
            # This epoch keeps its lanes to its end.
            assert loader.state_dict()["lanes"] == 1
            with pytest.warns(UserWarning, match="1 lanes on 3 ranks"):
                batches = list(loader)
            found += [i for batch in batches for i in valid_ids(batch)]
            assert loader.state_dict()["lanes"] == 3
    assert sorted(found) == sorted(order[0][DONE:])


def valid_ids(batch):
    return [i for i, ok in zip(ids(batch), batch["valid"].tolist(), strict=True) if ok]


def test_tail(state, order):
    with make_loader(tail="drop", batch_size=5) as loader:
        loader.load_state_dict(state)
        assert flat(all_ids(loader)) == order[0][DONE : DONE + 10]


def test_lanes(state, order):
    with make_loader(lanes=2) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert flat(all_ids(loader)) == order[0][DONE:]
        assert loader.state_dict()["lanes"] == 2
        assert sorted(flat(all_ids(loader))) == list(range(N))


def test_prefetch_depth(state, order):
    for prefetch_factor in (0, 1, 7):
        assert goes_on(make_loader(prefetch_factor=prefetch_factor), state, order)


def test_budget_and_pool(state, order):
    with make_loader() as loader:
        floor = loader.floor_bytes
    assert goes_on(make_loader(budget_bytes=floor), state, order)
    assert goes_on(make_loader(pool=tdi.ChunkPool(10**6)), state, order)
    with make_loader(budget_bytes=floor - 1) as loader:
        loader.load_state_dict(state)
        with refused(BudgetError, f"{floor} B"):
            next(iter(loader))


def test_how_it_is_read(state, order):
    options = {"max_inflight": 3, "decode_threads": 1, "retry": tdi.RetryPolicy(attempts=2)}
    assert goes_on(make_loader(**options, on_missing="raise"), state, order)


@pytest.mark.filterwarnings("ignore:PinMemory found no accelerator")
def test_pinned_memory(state, order):
    assert goes_on(make_loader(pin_memory=True), state, order)


def test_batch_transforms(state, order):
    def doubled(batch):
        return {**batch, "x": 2 * batch["x"]}

    assert goes_on(make_loader(batch_transforms=[doubled]), state, order)
    with make_loader(batch_transforms=[doubled]) as loader:
        loader.load_state_dict(state)
        batch = next(iter(loader))
        assert (batch["x"][:, 0, 0] / 12).tolist() == order[0][DONE : DONE + 4]


def test_nodes_after_the_gather(state, order):
    def same(batch):
        return batch

    for wrap in (
        lambda node: node,
        lambda node: torchdata.nodes.Mapper(node, same),
        lambda node: tdi.Prefetcher(torchdata.nodes.Prefetcher(node, 2), 3),
    ):
        assert goes_on(tdi.InSituLoader(wrap(make_gather())), state, order)


def test_name_of_the_sample_index(state, order):
    with make_loader(sample_index="number") as loader:
        loader.load_state_dict(state)
        found = [i for batch in loader for i in batch["number"].tolist()]
    assert found == order[0][DONE:]


def test_place_of_the_archive(state, order, tmp_path):
    small_store(path=tmp_path / "moved")
    assert goes_on(make_loader(tdi.open_store(tmp_path / "moved")), state, order)


def test_codec_of_the_archive(state, order):
    for codec in ("none", "gzip"):
        assert goes_on(make_loader(small_store(codec=codec)), state, order)


def test_chunks_along_field_axes(state, order):
    store = small_store()
    tiled = make_store({"t2m": zarr.open_array(store, path="t2m")[...]}, chunks=(4, 1, 2))
    assert goes_on(make_loader(tiled), state, order)


def test_samples_appended_outside_of_the_split():
    def of(n):
        store = small_store(n)
        split = tdi.split_by_range(views_of(store), {"train": (0, 14)})["train"]
        return make_loader(store, split=split)

    with of(N) as loader:
        order = [flat(all_ids(loader)) for _ in range(2)]
    with of(N) as loader:
        take(loader, 2)
        state = loader.state_dict()
    assert goes_on(of(N + 9), state, order)


def test_samples_appended_to_what_is_drawn(state, order):
    longer = small_store(N + 9)
    assert is_refused(make_loader(longer), state, "n was 22 and is 31", 'on_growth="finish_epoch"')
    with make_loader(longer, on_growth="finish_epoch") as loader:
        loader.load_state_dict(state)
        assert flat(all_ids(loader)) == order[0][DONE:]
        assert sorted(flat(all_ids(loader))) == list(range(N + 9))


# Rows that may not


def test_seed(state):
    assert is_refused(make_loader(seed=1), state, "seed was 0 and is 1")


def test_shuffle(state):
    assert is_refused(make_loader(shuffle=False), state, "shuffle was True and is False")


def test_block_size(state):
    assert is_refused(make_loader(block_chunks=3), state, "block_chunks was 2 and is 3")


def test_run_size(state):
    assert is_refused(make_loader(run_chunks=2), state, "run_chunks was 1 and is 2")


def test_split(state):
    store = small_store()
    split = tdi.split_by_range(views_of(store), {"train": (0, 14)})["train"]
    assert is_refused(make_loader(store, split=split), state, "n was 22 and is 14", "units was")


def test_chunks_along_the_sample_axis(state):
    assert is_refused(make_loader(small_store(chunk=5)), state, "units was")


def test_arrays_and_their_dtypes(state):
    store = small_store()
    other = make_store({"t2m": (N, 2, 4)}, chunks=(4, 2, 4))
    cast = {"x": tdi.open_arrays(store, dtype="float64")["t2m"]}
    renamed = make_store({"u10": (N, 2, 3)}, chunks=(4, 2, 3))
    for loader in (
        make_loader(other),
        make_loader(store, cast),
        make_loader(renamed, {"x": tdi.open_arrays(renamed)["u10"]}),
    ):
        assert is_refused(loader, state, "arrays was")


def test_views_and_their_offsets(state):
    store = small_store()
    split = tdi.Split("all but the last", ((0, N - 1),), N)
    for views in ({"y": views_of(store)["x"]}, {"x": views_of(store)["x"].window(0, 1)}):
        assert is_refused(make_loader(store, views), state, "offsets was")
        assert is_refused(make_loader(store, views, split=split), state, "offsets was")


def test_anything_of_these_with_strict_off(state):
    with make_loader(seed=1) as loader:
        anew = flat(all_ids(loader))
    with make_loader(seed=1, strict=False) as loader:
        with pytest.warns(UserWarning, match="starting epoch 0 anew .*seed was 0 and is 1"):
            loader.load_state_dict(state)
        assert flat(all_ids(loader)) == anew


def test_every_row_of_the_table_has_its_test_here():
    section = PAGE.read_text().partition("## What may I change at resume?")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([A-Z][^|(]*)", section, re.MULTILINE)
    assert rows.pop(0).strip() == "What"
    tests = ["test_" + re.sub(r"[^a-z]+", "_", row.strip().lower()) for row in rows]
    here = [name for name in globals() if name.startswith("test_")]
    assert sorted(here) == sorted([*tests, "test_every_row_of_the_table_has_its_test_here"])
