"""What a resume reads: what is left, as planned, wherever it begins and on however many ranks."""

import math

import pytest

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY, counted, through_json
from torchdata_insitu.testing import CountingStore, make_store

CHUNK, N_CHUNKS, BLOCK = 5, 200, 4
N_SAMPLES = CHUNK * N_CHUNKS
OPTIONS = {"batch_size": 4, "block_chunks": BLOCK, "seed": 2}
pytestmark = pytest.mark.filterwarnings("ignore:.*lanes on .* ranks")


@pytest.fixture(scope="module")
def store():
    return CountingStore(make_store({"t": counted((N_SAMPLES, 1))}, chunks=(CHUNK, 1)))


@pytest.fixture(scope="module")
def views(store):
    return {"x": tdi.open_arrays(store)["t"]}


@pytest.fixture(autouse=True)
def counts_from_zero(store, views):
    store.reset()


def load(store, views, state=None, **options):
    loader = tdi.build_loader(store, views, **{"budget_bytes": PLENTY, **OPTIONS, **options})
    if state is not None:
        loader.load_state_dict(state)
    return loader


def state_after(store, views, n_batches, **options):
    """Of a loader that skipped so many batches."""
    with load(store, views, **options) as loader:
        loader.skip(n_batches)
        return through_json(loader.state_dict())


def chunks_read(store):
    return {int(key.split("/")[2]) for key in store.gets}


@pytest.mark.usefixtures("batches_one_by_one")
@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_resume_reads_one_block_at_any_position(store, views, lanes, share):
    """One a lane, for the first batch; of a block that was begun, what is left of it."""
    n_batches = int(share * N_SAMPLES) // OPTIONS["batch_size"]
    state = state_after(store, views, n_batches, lanes=lanes)
    assert store.reads() == 0
    position = state["position"]
    with load(store, views, lanes=lanes) as loader:
        floor, drawn = loader.floor_bytes, loader.plan.draws(0, lanes=lanes)[:, 0].tolist()
    blocks = blocks_by_hand(drawn, lanes)
    needed = set()
    for lane in range(lanes):
        left = [p for p in range(position, N_SAMPLES) if p % lanes == lane]
        of_first = [p for p in left if blocks[p] == blocks[left[0]]]
        # The first batch leaves no block, and so no next one has to be opened.
        assert len(of_first) > OPTIONS["batch_size"] // lanes
        needed |= {drawn[p] // CHUNK for p in of_first}
    # All of the budget goes to the open blocks: hardly any is left to read ahead.
    options = {"lanes": lanes, "prefetch_factor": 0, "budget_bytes": floor}
    with load(store, views, state, **options) as loader:
        batch = next(iter(loader))
        assert batch["sample_index"].tolist() == drawn[position : position + 4]
        assert needed <= chunks_read(store)
        assert store.reads() <= lanes * BLOCK


def blocks_by_hand(drawn, lanes):
    """By position, the block of its lane that it lies in."""
    blocks = [0] * N_SAMPLES
    for lane in range(lanes):
        # The ramp: the first block of a lane is small, each next one twice as large.
        size, number, units = max(1, math.ceil(BLOCK * (lane + 1) / (8 * lanes))), 0, set()
        for position in range(lane, N_SAMPLES, lanes):
            unit = drawn[position] // CHUNK
            if unit not in units and len(units) == size:
                size, number, units = min(2 * size, BLOCK), number + 1, set()
            units.add(unit)
            blocks[position] = number
    return blocks


@pytest.mark.parametrize(
    "worlds",
    [(2, 2, None), (4, 3, None), (4, 2, None), (2, 4, 4), (3, 4, 12), (6, 1, None)],
    ids=str,
)
@pytest.mark.parametrize("share", [0.0, 0.37, 0.9])
def test_reads_of_all_ranks_are_the_sum_of_their_plans(store, views, worlds, share):
    was, now, lanes = worlds
    n_batches = int(share * N_SAMPLES) // (OPTIONS["batch_size"] * was)
    state = state_after(store, views, n_batches, rank=0, world_size=was, lanes=lanes)
    planned, found, read = 0, 0, set()
    for rank in range(now):
        options = {"rank": rank, "world_size": now, "lanes": lanes}
        with load(store, views, state, **options) as loader:
            place = {"lanes": state["lanes"], "position": state["position"]}
            mine = loader.plan.reads(rank, world_size=now, **place)
            assert loader.expected_reads == mine["t"]
            for _ in loader:
                pass
            assert loader.stats().reads["t"] == store.reads()
            drawn = loader.plan.draws(0, state["position"], lanes=state["lanes"])[:, 0]
        planned += mine["t"]
        found += store.reads()
        read |= chunks_read(store)
        store.reset()
    # A chunk that a border cuts is planned for both lanes; a rank of both may find it in its pool.
    factor = now // math.gcd(now, state["lanes"])
    n_borders = state["lanes"] - 1
    assert planned - n_borders * factor * (now < state["lanes"]) <= found <= planned
    # What is left is read, and no chunk that was finished.
    assert read == set((drawn // CHUNK).tolist())
    assert len(read) <= planned <= (len(read) + n_borders) * factor
