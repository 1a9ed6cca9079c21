"""Every tail for every small number of samples, ranks and draws in a batch, against plain lists.

What is expected is written from the description of the tails, with the order of an epoch of
`tests.planning.oracle`, position by position.
"""

import functools
import itertools

import pytest

from tests.contracts.refusals import refused
from tests.planning.fake_space import FakeSpace
from tests.planning.oracle import OracleOrder
from tests.small_loaders import ids, make_loader, small_store
from torchdata_insitu.errors import PlanError
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.plan import Plan

TAILS = ("short", "drop", "pad", "exact")
MOST_DRAWS, MOST_RANKS, MOST_IN_BATCH = 13, 5, 3
PLAN = {"seed": 4, "shuffle": True, "block_chunks": 2, "run_chunks": 1}

each_tail = pytest.mark.parametrize("tail", TAILS)
each_world = pytest.mark.parametrize("world_size", range(1, MOST_RANKS + 1))
sizes = list(itertools.product(range(1, MOST_DRAWS + 1), range(1, MOST_IN_BATCH + 1)))


def unit_lengths(n_draws):
    """Units of 3 draws, and a shorter one."""
    return [3] * (n_draws // 3) + [n_draws % 3] * (n_draws % 3 > 0)


@functools.cache
def order_of(n_draws, lanes):
    """Draws of the epoch by position, as (unit, index)."""
    return OracleOrder(unit_lengths(n_draws), epoch=1, lanes=lanes, **PLAN).draws()


def expected_batches(n_draws, batch_size, world_size, tail, begin=0):
    """Batches by rank as lists of (position, valid), and the positions left out."""
    window = batch_size * world_size
    batches = [[] for _ in range(world_size)]
    for start in range(begin, n_draws, window):
        left = range(start, min(start + window, n_draws))
        is_full = len(left) == window
        if not is_full and (tail == "drop" or (tail == "short" and len(left) < world_size)):
            return batches, set(left)
        for rank in range(world_size):
            rows = [(q, True) for q in left if q % world_size == rank]
            own = [q for q in range(n_draws) if q % world_size == rank]
            copy = (max(own, default=n_draws - 1), False)
            if not is_full and tail == "pad":
                rows += [copy] * (batch_size - len(rows))
            if not is_full and tail == "exact" and not rows:
                rows = [copy]
            batches[rank].append(rows)
    return batches, set()


def planned_batches(plan, rank, world_size, lanes, begin=0):
    """What the segments of a rank cut: batches as lists of (draw, valid), and the places after."""
    batches, places, rows = [], [], []
    for segment in plan.segments(Cursor(1, begin, lanes), rank, world_size):
        drawn = zip(map(tuple, segment.draws.tolist()), segment.valid.tolist(), strict=True)
        cuts = {cut.stop: cut.position for cut in segment.cuts}
        for stop, row in enumerate(drawn, 1):
            rows.append(row)
            if stop in cuts:
                batches.append(rows)
                places.append(cuts[stop])
                rows = []
    assert not rows
    return batches, places


@each_world
@each_tail
def test_even_steps_for_every_tail_policy(tail, world_size):
    for n_draws, batch_size in sizes:
        plan = Plan(FakeSpace(unit_lengths(n_draws)), batch_size=batch_size, tail=tail, **PLAN)
        expected, left_out = expected_batches(n_draws, batch_size, world_size, tail)
        n_steps = len(expected[0])
        assert plan.steps(0, world_size) == n_steps
        assert plan.left_out(0, world_size) == len(left_out)
        if n_steps == 0:
            with refused(PlanError, "0 batches", n_draws, batch_size, world_size, repr(tail)):
                plan.check(world_size)
            continue
        plan.check(world_size)
        for lanes in {1, 2, world_size}:
            order = order_of(n_draws, lanes)
            seen = []
            for rank in range(world_size):
                batches, places = planned_batches(plan, rank, world_size, lanes)
                assert batches == [
                    [(order[q], valid) for q, valid in rows] for rows in expected[rank]
                ]
                assert [len(rows) for rows in batches[:-1]] == [batch_size] * (n_steps - 1)
                window = batch_size * world_size
                assert places == [*range(window, n_steps * window, window), n_draws]
                seen += [draw for rows in batches for draw, valid in rows if valid]
            delivered = [draw for q, draw in enumerate(order) if q not in left_out]
            assert sorted(seen) == sorted(delivered)
            assert len(set(order)) == n_draws


@each_world
@each_tail
def test_a_tail_is_the_same_from_any_position_where_an_epoch_is_resumed(tail, world_size):
    """Ranks for which nothing is left copy the last draw that was theirs."""
    n_draws, batch_size = 11, 2
    plan = Plan(FakeSpace(unit_lengths(n_draws)), batch_size=batch_size, tail=tail, **PLAN)
    order = order_of(n_draws, world_size)
    for begin in range(n_draws + 1):
        expected, left_out = expected_batches(n_draws, batch_size, world_size, tail, begin)
        assert plan.steps(begin, world_size) == len(expected[0])
        assert plan.left_out(begin, world_size) == len(left_out)
        for rank in range(world_size):
            batches, _ = planned_batches(plan, rank, world_size, world_size, begin)
            assert batches == [[(order[q], valid) for q, valid in rows] for rows in expected[rank]]


@each_tail
def test_what_is_expected_covers_every_case_of_a_tail(tail):
    """That the lists above are not empty of what they are for."""
    rests = {
        n_draws % (batch_size * world_size) - world_size
        for n_draws, batch_size in sizes
        for world_size in range(1, MOST_RANKS + 1)
    }
    assert min(rests) < 0 < max(rests)
    none, left, copies = 0, 0, 0
    for (n_draws, batch_size), world_size in itertools.product(sizes, range(1, MOST_RANKS + 1)):
        batches, left_out = expected_batches(n_draws, batch_size, world_size, tail)
        none += not batches[0]
        left += bool(left_out)
        copies += any(not valid for rank in batches for rows in rank for _, valid in rows)
        assert len({len(of_rank) for of_rank in batches}) == 1
        assert all(rows for of_rank in batches for rows in of_rank)
    keeps_all = tail in {"pad", "exact"}
    assert (none == 0, left == 0, copies > 0) == (keeps_all,) * 3


@pytest.mark.parametrize(
    "n_samples, world_size, batch_size", [(1, 3, 2), (5, 2, 2), (5, 3, 2), (8, 2, 2), (13, 5, 1)]
)
@each_tail
def test_batches_have_the_rows_and_the_mask_of_the_tail(tail, n_samples, world_size, batch_size):
    store = small_store(n=n_samples, chunk=2)
    expected, _ = expected_batches(n_samples, batch_size, world_size, tail)
    if not expected[0]:
        return
    shared = {"batch_size": batch_size, "tail": tail, "world_size": world_size, "shuffle": False}
    with make_loader(store, batch_size=1, shuffle=False, lanes=world_size) as loader:
        order = [ids(batch)[0] for batch in loader]
    for rank in range(world_size):
        with make_loader(store, rank=rank, **shared) as loader:
            assert len(loader) == len(expected[rank])
            for batch, rows in zip(loader, expected[rank], strict=True):
                assert ids(batch) == [order[q] for q, _ in rows]
                assert ("valid" in batch) == (tail in {"pad", "exact"})
                if "valid" in batch:
                    assert batch["valid"].tolist() == [valid for _, valid in rows]


@pytest.mark.parametrize("tail", ["short", "drop"])
def test_more_ranks_than_samples_is_the_same_error_on_every_rank(tail, monkeypatch):
    """Given or looked up, at once or at the first use; nobody is left waiting for the others."""
    texts = set()
    for rank in range(4):
        with refused(PlanError, "3 draws", "4 ranks", repr(tail)) as caught:
            make_loader(small_store(n=3), batch_size=1, tail=tail, rank=rank, world_size=4)
        texts.add(str(caught.value))
        with monkeypatch.context() as environment, refused(PlanError) as caught:
            loader = make_loader(small_store(n=3), batch_size=1, tail=tail)
            environment.setenv("RANK", str(rank))
            environment.setenv("WORLD_SIZE", "4")
            for use in (len, lambda loader: loader.state_dict(), lambda loader: next(iter(loader))):
                with refused(PlanError) as caught_later:
                    use(loader)
                texts.add(str(caught_later.value))
            raise caught_later.value
        texts.add(str(caught.value))
    assert len(texts) == 1
