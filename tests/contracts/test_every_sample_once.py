"""Every sample once an epoch, whatever changes in the middle of it."""

import dataclasses
import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY, counted, through_json
from torchdata_insitu.errors import PlanError
from torchdata_insitu.testing import make_store

# An epoch that is resumed on other ranks keeps its lanes; what that costs is told.
pytestmark = pytest.mark.filterwarnings("ignore:.*lanes on .* ranks")

TAILS = ("short", "drop", "pad", "exact")


@dataclasses.dataclass
class Leg:
    """A stretch of an epoch on so many ranks, in batches of so many."""

    world_size: int
    batch_size: int
    n_steps: int


class Epoch:
    """Epoch 0 of one plan, run in legs; counts what comes."""

    def __init__(self, store, views, tail, **plan):
        self.store = store
        self.views = views
        self.tail = tail
        self.plan = plan
        self.state = None
        self.found = []
        self.left_out = 0
        self.lanes = None
        self.planner = None

    @property
    def is_over(self):
        return self.state is not None and self.state["epoch"] > 0

    def run(self, leg):
        """One leg on all its ranks, one after the other; the state goes on."""
        position = 0 if self.state is None else self.state["position"]
        n_draws = self.n_draws()
        if n_steps(n_draws, 0, leg.batch_size, leg.world_size, self.tail) == 0:
            with pytest.raises(PlanError, match=f"{n_draws} draws.*{leg.batch_size}"):
                self.loader(leg, 0)
            return
        # An epoch keeps the lanes it began with, whatever the number of ranks becomes.
        self.lanes = self.lanes or self.plan["lanes"] or leg.world_size
        n_left = n_steps(n_draws, position, leg.batch_size, leg.world_size, self.tail)
        states, lengths = [], set()
        for rank in range(leg.world_size):
            with self.loader(leg, rank) as loader:
                if self.state is not None:
                    loader.load_state_dict(self.state)
                lengths.add(len(loader))
                if loader.epoch == 0:
                    batches = list(itertools.islice(loader, leg.n_steps))
                    assert len(batches) == min(leg.n_steps, n_left)
                    self.found += valid_samples(batches, leg.batch_size)
                states.append(through_json(loader.state_dict()))
                self.planner = loader.chain.planner
        assert len(lengths) == 1
        assert states == states[:1] * leg.world_size
        self.state = states[0]
        if self.is_over:
            self.left_out = self.planner.plan.left_out(position, leg.world_size)

    def loader(self, leg, rank):
        return tdi.build_loader(
            self.store,
            self.views,
            batch_size=leg.batch_size,
            rank=rank,
            world_size=leg.world_size,
            tail=self.tail,
            budget_bytes=PLENTY,
            prefetch_factor=rank % 2,
            **self.plan,
        )

    def n_draws(self):
        plan = {key: value for key, value in self.plan.items() if key != "lanes"}
        return tdi.ChunkPlanner(self.views, batch_size=1, tail="exact", **plan).plan.n_draws


def n_steps(n_draws, position, batch_size, world_size, tail):
    """Batches on each rank, from the description of the tails."""
    full, rest = divmod(n_draws - position, batch_size * world_size)
    partial = {"drop": False, "short": rest >= world_size, "pad": rest > 0, "exact": rest > 0}
    return full + partial[tail]


def valid_samples(batches, batch_size):
    """Samples of batches without copies; only the last batch may be short."""
    found = []
    for batch in batches:
        samples = batch["sample_index"].tolist()
        valid = batch.get("valid")
        found += (
            samples
            if valid is None
            else [sample for sample, ok in zip(samples, valid.tolist(), strict=True) if ok]
        )
    sizes = [len(batch["sample_index"]) for batch in batches]
    assert all(size == batch_size for size in sizes[:-1])
    assert all(0 < size <= batch_size for size in sizes)
    return found


@st.composite
def epochs(draw):
    n_samples = draw(st.integers(1, 50))
    arrays = {"t": counted((n_samples, 2)), "u": counted((n_samples,))}
    chunks = {"t": (draw(st.integers(1, 9)), 1), "u": (draw(st.integers(1, 9)),)}
    store = make_store(arrays, chunks=chunks)
    t, u = tdi.open_arrays(store).values()
    reach = min(n_samples - 1, 9)
    back, ahead = draw(st.integers(0, reach)), draw(st.integers(0, reach))
    ahead = min(ahead, reach - back)
    views = {"x": t.window(-back, 0), "y": u.shift(ahead)}
    split = None
    if draw(st.booleans()):
        cuts = draw(st.sets(st.integers(0, n_samples), min_size=2, max_size=6))
        edges = sorted(cuts)[: len(cuts) // 2 * 2]
        split = tdi.Split("train", tuple(itertools.batched(edges, 2)), n_samples)
    epoch = Epoch(
        store,
        views,
        draw(st.sampled_from(TAILS)),
        split=split,
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 9)),
        block_chunks=draw(st.integers(1, 6)),
        lanes=draw(st.one_of(st.none(), st.integers(1, 5))),
    )
    ranges = [(0, n_samples)] if split is None else split.ranges
    anchors = [
        anchor
        for start, stop in ranges
        for anchor in range(max(start, back), min(stop, n_samples - ahead))
    ]
    assume(anchors)
    return epoch, anchors


legs = st.builds(Leg, st.integers(1, 4), st.integers(1, 13), st.integers(1, 6))


@settings(max_examples=50)
@given(epochs(), st.lists(legs, max_size=5))
def test_random_world_and_batch_changes_deliver_each_sample_once(case, history):
    epoch, anchors = case
    assert epoch.n_draws() == len(anchors)
    for leg in [*history, Leg(2, 3, 1000), Leg(1, 1, 1000)]:
        if not epoch.is_over:
            epoch.run(leg)
    assert epoch.is_over
    assert len(set(epoch.found)) == len(epoch.found)
    n_delivered = len(anchors) - epoch.left_out
    order = epoch.planner.plan.draws(0, lanes=epoch.lanes)[:, 0].tolist()
    assert sorted(order) == list(anchors)
    assert sorted(epoch.found) == sorted(order[:n_delivered])
    if epoch.tail in {"pad", "exact"}:
        assert epoch.left_out == 0


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("batch_size", [1, 2])
def test_fewer_samples_than_ranks(tail, batch_size):
    store = make_store({"t": counted((3, 2))}, chunks=(2, 2))
    epoch = Epoch(store, {"x": tdi.open_arrays(store)["t"]}, tail, lanes=None)
    epoch.run(Leg(4, batch_size, 9))
    if tail in {"pad", "exact"}:
        assert sorted(epoch.found) == [0, 1, 2]
        assert epoch.is_over
    else:
        assert epoch.state is None


def test_the_epoch_after_a_change_of_ranks_is_whole():
    store = make_store({"t": counted((47, 2))}, chunks=(4, 2))
    views = {"x": tdi.open_arrays(store)["t"]}
    plan = {"batch_size": 3, "tail": "exact", "budget_bytes": PLENTY}
    with tdi.build_loader(store, views, rank=1, world_size=2, **plan) as loader:
        for _ in itertools.islice(loader, 2):
            pass
        state = loader.state_dict()
    found = []
    for rank in range(3):
        with tdi.build_loader(store, views, rank=rank, world_size=3, **plan) as loader:
            loader.load_state_dict(state)
            for _ in loader:
                pass
            found += valid_samples(list(loader), 3)
            assert loader.state_dict()["lanes"] == 3
    assert sorted(found) == list(range(47))
