import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning import oracle
from torchdata_insitu.errors import StateError
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.rank_stream import TAILS, RankStream, steps_left, stop_position

CASES = {
    "n": st.integers(0, 60),
    "start": st.integers(0, 60),
    "batch": st.integers(1, 7),
    "world": st.integers(1, 7),
    "tail": st.sampled_from(TAILS),
}


@given(**CASES)
def test_every_rank_has_the_same_steps_and_its_own_positions(n, start, batch, world, tail):
    start = min(n, start)
    handed_out = []
    for rank in range(world):
        stream = RankStream.of(
            Cursor(0, start, 1),
            n_draws=n,
            batch_size=batch,
            rank=rank,
            world_size=world,
            tail=tail,
        )
        rows, after = oracle.batches(n, start, batch=batch, world=world, rank=rank, tail=tail)
        assert stream.n_steps == len(rows) == steps_left(n, start, batch, world, tail)
        valid = [stream.position(place) for place in range(stream.n_valid)]
        copies = [stream.copied_position] * (stream.n_total - stream.n_valid)
        expected = [row for rows_of_batch in rows for row in rows_of_batch]
        assert [*((q, True) for q in valid), *((q, False) for q in copies)] == expected
        lengths = [len(row) for row in rows]
        ends = [sum(lengths[: step + 1]) for step in range(len(rows))]
        assert stream.batch_ends(0, stream.n_total) == list(zip(ends, after, strict=True))
        assert all(lengths)
        handed_out += valid
    stop = stop_position(n, start, batch, world, tail)
    assert sorted(handed_out) == list(range(start, stop))
    if tail in {"pad", "exact"}:
        assert stop == n
    else:
        assert n - stop < (batch * world if tail == "drop" else world)


def test_full_batches_have_one_size_on_all_ranks_from_any_position():
    for start in range(13):
        stream = RankStream.of(
            Cursor(0, start, 1), n_draws=100, batch_size=3, rank=2, world_size=4, tail="drop"
        )
        assert stream.n_valid == 3 * stream.n_steps


def test_a_rank_without_draws_copies_the_last_one():
    stream = RankStream.of(
        Cursor(0, 0, 1), n_draws=2, batch_size=3, rank=3, world_size=4, tail="exact"
    )
    assert (stream.n_valid, stream.n_total, stream.copied_position) == (0, 1, 1)


def test_a_cursor_inside_a_batch_belongs_to_its_rank():
    cursor = Cursor(0, 7, 1, origin=4)
    settings = {"n_draws": 100, "batch_size": 4, "tail": "short"}
    stream = RankStream.of(cursor, rank=1, world_size=2, **settings)
    assert (stream.begin, stream.position(stream.begin)) == (1, 7)
    with pytest.raises(StateError, match="rank 0 of 2"):
        RankStream.of(cursor, rank=0, world_size=2, **settings)
