"""All ranks of a job in one process, held at every step against the rules written down by hand."""

import collections
import contextlib
import dataclasses
import functools
import math

import numpy as np

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY, counted, through_json
from tests.contracts.written_order import order
from tests.planning import oracle
from torchdata_insitu.testing import make_store

N_SAMPLES, CHUNK = 48, 4
# The target of the last sample would be outside of the array.
N_DRAWS = N_SAMPLES - 1
PLAN = {"seed": 5, "block_chunks": 2, "run_chunks": 2}


@dataclasses.dataclass(frozen=True)
class World:
    """How many ranks there are, and how they cut the epoch into batches."""

    world_size: int
    batch_size: int
    tail: str = "short"


class Job:
    """A training that runs on one world after another.

    Attributes:
        delivered: by epoch, how often each sample came, copies left out.
        left_out: by epoch, samples that its last world did not deliver.
        global_batches: by step over all epochs, the samples of all ranks.
        state: what the last step saved, as a file gives it back; None before the first.
    """

    def __init__(self, lanes=None):
        values = counted((N_SAMPLES, 2))
        self.store = make_store({"t": values}, chunks=(CHUNK, 2))
        t = tdi.open_arrays(self.store)["t"]
        self.views = {"x": t, "y": t.shift(1)}
        self.values = values
        self.pool = tdi.ChunkPool(PLENTY)
        self.asked_lanes = lanes
        self.epoch = self.position = self.step = 0
        self.lanes = lanes
        self.delivered = collections.defaultdict(collections.Counter)
        self.left_out = {}
        self.global_batches = []
        self.state = None

    def run(self, world, n_steps):
        """Go on for so many steps on the ranks of a world, all of them new."""
        with self._loaders(world) as loaders:
            while n_steps > 0:
                n_steps -= self._run_epoch(world, loaders, n_steps)

    def run_epochs(self, world, n_epochs):
        """Go on to the end of this epoch and of those after it."""
        with self._loaders(world) as loaders:
            for _ in range(n_epochs):
                self._run_epoch(world, loaders, math.inf)

    @contextlib.contextmanager
    def _loaders(self, world):
        self._enter(world)
        with contextlib.ExitStack() as stack:
            loaders = [
                stack.enter_context(self._loader(world, rank)) for rank in range(world.world_size)
            ]
            if self.state is not None:
                for loader in loaders:
                    loader.load_state_dict(self.state)
            yield loaders

    def check_ledger(self):
        """Every epoch that is over gave each sample once, but for those that a tail left out."""
        assert sorted(self.left_out) == list(range(self.epoch))
        for epoch, left_out in self.left_out.items():
            counts = self.delivered[epoch]
            assert set(counts.values()) == {1}
            assert len(counts) == N_DRAWS - left_out

    def _run_epoch(self, world, loaders, n_steps):
        rest = [self._rest(world, rank) for rank in range(world.world_size)]
        n_left, n_before = len(rest[0]), self.step
        assert {len(batches) for batches in rest} == {n_left}
        assert {len(loader) for loader in loaders} == {n_before + n_left}
        passes = [iter(loader) for loader in loaders]
        for step in range(min(n_steps, n_left)):
            self.global_batches.append([])
            for batches, batch in zip(rest, map(next, passes), strict=True):
                self._check(batch, batches[step], world)
            self._advance(world)
            states = [loader.state_dict() for loader in loaders]
            assert states == states[:1] * world.world_size
            self._check_state(states[0])
        self.state = through_json(states[0])
        if n_steps >= n_left:
            assert [next(batches, None) for batches in passes] == [None] * world.world_size
        return min(n_steps, n_left)

    def _loader(self, world, rank):
        return tdi.build_loader(
            self.store,
            self.views,
            batch_size=world.batch_size,
            tail=world.tail,
            rank=rank,
            world_size=world.world_size,
            lanes=self.asked_lanes,
            pool=self.pool,
            prefetch_factor=0,
            **PLAN,
        )

    def _check(self, batch, rows, world):
        ledger = written(self.epoch, self.lanes)
        anchors = np.array([ledger[position] for position, _ in rows])
        assert batch["sample_index"].tolist() == anchors.tolist()
        np.testing.assert_array_equal(batch["x"].numpy(), self.values[anchors])
        np.testing.assert_array_equal(batch["y"].numpy(), self.values[anchors + 1])
        valid = [ok for _, ok in rows]
        if world.tail in {"pad", "exact"}:
            assert batch["valid"].tolist() == valid
        assert all(valid) or world.tail in {"pad", "exact"}
        self.delivered[self.epoch].update(anchors[valid].tolist())
        self.global_batches[-1] += anchors[valid].tolist()

    def _check_state(self, state):
        place = {name: state[name] for name in ("epoch", "position", "step", "lanes")}
        assert place == {
            "epoch": self.epoch,
            "position": self.position,
            "step": self.step,
            "lanes": self.lanes,
        }

    # The rules by hand: where the job stands.

    def _rest(self, world, rank):
        """Batches that are left of the epoch, as (position, valid)."""
        batches, _ = oracle.batches(
            N_DRAWS,
            self.position,
            batch=world.batch_size,
            world=world.world_size,
            rank=rank,
            tail=world.tail,
        )
        return batches

    def _enter(self, world):
        if self.lanes is None:
            self.lanes = world.world_size
        if not self._rest(world, 0):
            self._begin_next_epoch(world)

    def _advance(self, world):
        n_left = len(self._rest(world, 0))
        self.step += 1
        if n_left > 1:
            self.position += world.batch_size * world.world_size
        else:
            self._begin_next_epoch(world)

    def _begin_next_epoch(self, world):
        self.left_out[self.epoch] = N_DRAWS - len(self.delivered[self.epoch])
        rest = (N_DRAWS - self.position) % (world.world_size * world.batch_size)
        lost = {"drop": rest, "short": rest if rest < world.world_size else 0}
        assert self.left_out[self.epoch] == lost.get(world.tail, 0)
        self.epoch, self.position, self.step = self.epoch + 1, 0, 0
        if self.asked_lanes is not None:
            self.lanes = self.asked_lanes
        elif self.lanes % world.world_size:
            self.lanes = world.world_size


@functools.cache
def written(epoch, lanes):
    """The samples of an epoch in global order."""
    units = [list(range(first, min(first + CHUNK, N_DRAWS))) for first in range(0, N_DRAWS, CHUNK)]
    return order(units, epoch=epoch, lanes=lanes, **PLAN)
