"""A landing that admits nobody lets nobody starve: random histories of a pool with few slots."""

import random

import pytest

from tests.each_case import each_case
from tests.pool.test_chunk_pool import SLOT, A, B, keys, open_pass, shape
from torchdata_insitu.pool.chunk_pool import ChunkPool
from torchdata_insitu.pool.live_passes import LivePasses

SOURCES = {A: shape(), B: shape("b", rows=3)}
FLOOR = 2
FLOOR_BYTES = FLOOR * sum(each.slot_bytes for each in SOURCES.values())
N_HISTORIES = 300


@pytest.fixture(autouse=True)
def debugging(monkeypatch):
    monkeypatch.setenv("TORCHDATA_INSITU_DEBUG", "1")


class Consumer:
    """A pass that asks ahead, and reads one segment after the other as the gather does."""

    def __init__(self, history, name):
        self.fills = []
        self.pool_pass = open_pass(
            history.pool, self.fills.extend, name=name, slots=SOURCES, floor=FLOOR
        )
        self.wanted = [self._segment(history.rng) for _ in range(history.rng.randrange(1, 7))]
        self.n_asked = 0
        self.admissions = []
        self.n_read = 0
        self.is_open = False

    @staticmethod
    def _segment(rng):
        """No more chunks of a source than the floor holds."""
        runs = [rng.sample(range(6), rng.randrange(FLOOR + 1)) for _ in SOURCES]
        return [key for s, each in zip(SOURCES, runs, strict=True) for key in keys(*each, source=s)]

    @property
    def is_closed(self):
        return self.pool_pass.closed

    @property
    def is_over(self):
        return self.is_closed or self.n_read == len(self.wanted)

    def ask(self, n_segments):
        wanted = self.wanted[self.n_asked : self.n_asked + n_segments]
        self.admissions += self.pool_pass.request_all(wanted)
        self.n_asked += len(wanted)

    @property
    def can_go_on(self):
        """Whether it has what it waits for, or gives back what it has."""
        if self.is_closed or self.is_open:
            return self.is_open and not self.is_closed
        return self.n_read < self.n_asked and self.admissions[self.n_read].n_left == 0

    def go_on(self):
        """Open the next segment, or give back the one that is open."""
        if self.is_open:
            self.pool_pass.release(self.wanted[self.n_read])
            self.n_read += 1
        else:
            admission = self.admissions[self.n_read]
            self.pool_pass.claim(admission)
            admission.wait()
            self.pool_pass.first_rows(self.wanted[self.n_read])
        self.is_open = not self.is_open

    def close(self):
        self.pool_pass.close()
        self.is_open = False


class History:
    """One pool, and what happens to it: steps that another seed chooses otherwise."""

    def __init__(self, seed, *, n_passes, n_spare):
        self.rng = random.Random(seed)
        self.pool = ChunkPool(n_passes * FLOOR_BYTES + n_spare * SLOT)
        self.consumers = []
        self.n_left = self.rng.randrange(n_passes, n_passes + 3)
        self.n_passes = n_passes
        self.n_late_landings = 0
        self.trace = []

    def run(self):
        for _ in range(self.rng.randrange(20, 60)):
            self._step()
        self._finish()
        return self.trace

    def _step(self):
        rng = self.rng
        live = [consumer for consumer in self.consumers if not consumer.is_closed]
        step = rng.choice(
            ["start", "ask", "ask", "land", "land", "land", "go on", "go on", "close"]
        )
        if step == "start" and self.n_left and len(live) < self.n_passes:
            self.n_left -= 1
            self.consumers.append(Consumer(self, f"pass {self.n_left}"))
        elif step == "ask" and live:
            rng.choice(live).ask(rng.randrange(1, 4))
        elif step == "land":
            self._land()
        elif step == "go on" and (able := [c for c in live if c.can_go_on]):
            rng.choice(able).go_on()
        elif step == "close" and live and rng.random() < 0.2:
            rng.choice(live).close()
        self._note(step)

    def _land(self):
        loading = [consumer for consumer in self.consumers if consumer.fills]
        if not loading:
            return
        consumer = self.rng.choice(loading)
        fill = consumer.fills.pop(self.rng.randrange(len(consumer.fills)))
        queued = any(c.pool_pass.has_queue for c in self.consumers)
        self.n_late_landings += queued and fill.leases > 0
        fate = self.rng.random()
        if consumer.is_closed and fate < 0.5:
            fill.abandon()
        elif fate < 0.05:
            fill.finish(OSError("gone"))
            for each in self.consumers:
                if any(admission.error is not None for admission in each.admissions):
                    each.close()
        else:
            fill.out[:] = fill.key.sample_run
            fill.finish(None)

    def _finish(self):
        """All that was asked for is read, if the pool does its part."""
        while True:
            able = [consumer for consumer in self.consumers if consumer.can_go_on]
            if able:
                able[0].go_on()
            elif any(consumer.fills for consumer in self.consumers):
                self._land()
            else:
                break
            self._note("finish")

    def _note(self, step):
        self.trace.append(
            (
                step,
                self.pool.charged_bytes,
                self.pool.n_in_use,
                [len(consumer.pool_pass.queue) for consumer in self.consumers],
                [[fill.key for fill in consumer.fills] for consumer in self.consumers],
                [[a.n_left for a in consumer.admissions] for consumer in self.consumers],
            )
        )


def always_pumps(monkeypatch):
    land = LivePasses.land

    def landed(self, work, *args, **options):
        land(self, work, *args, **options)
        self.pump(work)

    monkeypatch.setattr(LivePasses, "land", landed)


@each_case("n_passes, n_spare", [(1, 0), (1, 2), (2, 0), (2, 3), (3, 0), (3, 4)])
def test_all_that_was_asked_for_is_admitted_as_if_each_landing_admitted(n_passes, n_spare):
    n_late = n_read = 0
    for seed in range(N_HISTORIES // 6):
        history = History(seed, n_passes=n_passes, n_spare=n_spare)
        trace = history.run()
        for consumer in history.consumers:
            assert not consumer.pool_pass.has_queue, seed
            assert consumer.is_closed or consumer.n_read == consumer.n_asked, seed
            n_read += consumer.n_read
        assert history.pool.n_in_use == 0, seed
        n_late += history.n_late_landings
        with pytest.MonkeyPatch.context() as patched:
            always_pumps(patched)
            assert History(seed, n_passes=n_passes, n_spare=n_spare).run() == trace, seed
    # Or nothing was put to the test.
    assert n_late > 20
    assert n_read > 20


def test_a_chunk_that_lands_for_nobody_makes_room_for_others():
    """A slot whose chunk nobody leases any more is what a queue waits for."""
    pool = ChunkPool(2 * SLOT)
    fills, others = [], []
    mine = open_pass(pool, fills.extend)
    mine.request(keys(0, 1))
    mine.close()
    theirs = open_pass(pool, others.extend, name="val")
    theirs.request(keys(2, 3))
    assert (len(theirs.queue), others) == (2, [])
    for n_left in (1, 0):
        fills.pop().finish(None)
        assert len(theirs.queue) == n_left
    assert [fill.key for fill in others] == keys(2, 3)


def test_a_chunk_that_does_not_come_makes_room_for_others():
    pool = ChunkPool(3 * SLOT)
    fills, others = [], []
    mine = open_pass(pool, fills.extend, floor=1)
    theirs = open_pass(pool, others.extend, name="val", floor=1)
    mine.request(keys(0, 1))
    theirs.request(keys(2, 3))
    assert len(theirs.queue) == 1
    fills.pop().finish(OSError("gone"))
    assert [fill.key for fill in others] == keys(2, 3)


def test_a_landing_of_a_leased_chunk_admits_nobody(monkeypatch):
    """There is no more room than before, and with small chunks most landings find a queue."""
    pool, fills = ChunkPool(3 * SLOT), []
    mine = open_pass(pool, fills.extend)
    mine.request(keys(0, 1, 2, 3, 4))
    pumped = []
    monkeypatch.setattr(LivePasses, "pump", lambda *_: pumped.append(1))
    for fill in fills:
        fill.finish(None)
    assert (len(fills), pumped) == (3, [])
