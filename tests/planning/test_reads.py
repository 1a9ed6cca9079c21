import numpy as np
import pytest

from tests.planning.arrays import make_array
from torchdata_insitu.planning import reads
from torchdata_insitu.planning.anchor_space import AnchorSpace
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.plan import Plan


def admitted(plan, cursor, rank, world_size, n_draws=None):
    """Stored chunks of the segments in which the first so many draws lie."""
    counts = dict.fromkeys(plan.space.array_names, 0)
    stored = dict(zip(plan.space.array_names, plan.space.stored_per_chunk, strict=True))
    n_before = 0
    for segment in plan.segments(cursor, rank, world_size):
        if n_draws is not None and n_before >= n_draws:
            break
        n_before += len(segment.draws)
        for key in segment.admit:
            name = plan.space.array_names[key.source]
            counts[name] += stored[name]
    return counts


@pytest.mark.parametrize("chunks_at_once", [1, 7, 1 << 20])
@pytest.mark.parametrize("lanes, world_size", [(1, 1), (2, 2), (6, 2), (3, 2), (2, 6)])
def test_reads_are_those_of_the_segments(monkeypatch, chunks_at_once, lanes, world_size):
    monkeypatch.setattr(reads, "_CHUNKS_AT_ONCE", chunks_at_once)
    fine = make_array("fine", 400, 6, field=(4, 4), field_chunks=(3, 2))
    coarse = make_array("coarse", 400, 20)
    space = AnchorSpace({"x": fine.window(-9, 0, 1), "y": coarse.shift(25)})
    plan = Plan(space, seed=3, block_chunks=3, batch_size=4)
    for position in (0, 8 * world_size, 9 * 4 * world_size + 1):
        cursor = Cursor(1, position, lanes)
        for rank in range(world_size):
            counted = plan.reads(
                rank, world_size=world_size, epoch=1, lanes=lanes, position=position
            )
            assert counted == admitted(plan, cursor, rank, world_size)


@pytest.mark.parametrize("lanes, world_size", [(1, 1), (2, 2), (6, 2), (3, 2), (2, 6)])
@pytest.mark.parametrize("tail", ["short", "pad"])
def test_reads_of_the_first_batches_are_those_of_their_segments(lanes, world_size, tail):
    fine, coarse = make_array("fine", 400, 6), make_array("coarse", 400, 20)
    space = AnchorSpace({"x": fine.window(-9, 0, 1), "y": coarse.shift(25)})
    plan = Plan(space, seed=3, block_chunks=3, batch_size=8, tail=tail)
    for position in (0, 9 * 4 * world_size + 1):
        cursor = Cursor(1, position, lanes)
        for rank in range(world_size):
            place = {"world_size": world_size, "epoch": 1, "lanes": lanes, "position": position}
            n_steps = plan.steps(position, world_size)
            for n in range(1, n_steps + 2):
                counted = plan.reads(rank, **place, n_batches=n)
                of_segments = admitted(plan, cursor, rank, world_size, 8 * n)
                # Admitted with them are the other draws of a block that began before the pass, and
                # the next block of a lane whose turn has not come yet.
                assert all(counted[name] <= of_segments[name] for name in counted)
                if (position == 0 and lanes <= world_size) or n >= n_steps:
                    assert counted == of_segments
            assert plan.reads(rank, **place, n_batches=n_steps) == plan.reads(rank, **place)
            assert set(plan.reads(rank, **place, n_batches=0).values()) == {0}


def test_without_offsets_each_chunk_is_read_once():
    space = AnchorSpace({"x": make_array("a", 1000, 24), "y": make_array("b", 1000, 24)})
    assert Plan(space, batch_size=8).reads() == {"a": 42, "b": 42}


def test_ranks_that_own_their_lanes_read_each_chunk_once_but_at_borders():
    space = AnchorSpace({"x": make_array("a", 1000, 24)})
    plan = Plan(space, batch_size=4, block_chunks=4)
    total = sum(plan.reads(rank, world_size=4, lanes=8)["a"] for rank in range(4))
    assert 42 <= total <= 42 + 8 - 1


def test_a_world_size_that_does_not_divide_the_lanes_reads_more_often():
    space = AnchorSpace({"x": make_array("a", 1000, 50)})
    plan = Plan(space, batch_size=4, block_chunks=4)
    assert [plan.reads(rank, world_size=2, lanes=1)["a"] for rank in range(2)] == [20, 20]


def test_runs_save_reads_of_shuffled_windows():
    space = AnchorSpace({"x": make_array("a", 2400, 24).window(0, 1)})
    single, runs = (
        Plan(space, block_chunks=16, run_chunks=run_chunks, batch_size=8).reads()["a"]
        for run_chunks in (1, 8)
    )
    assert 100 < runs < single < 200


def test_an_array_planned_in_cells_of_another_is_read_again():
    fine, coarse = make_array("fine", 600, 1), make_array("coarse", 600, 30)
    space = AnchorSpace({"x": fine, "y": coarse})
    assert Plan(space, block_chunks=4).reads() == {"fine": 600, "coarse": 20}


def test_draws_left_out_by_the_tail_are_not_read():
    space = AnchorSpace({"x": make_array("a", 100, 10)})
    plan = Plan(space, shuffle=False, block_chunks=1, batch_size=48, tail="drop")
    assert plan.left_out() == 4
    assert plan.reads() == {"a": 10}
    assert Plan(space, shuffle=False, block_chunks=1, batch_size=80, tail="drop").reads() == {
        "a": 8
    }


def test_a_rank_with_nothing_but_a_copy_reads_its_chunk():
    space = AnchorSpace({"x": make_array("a", 2, 1)})
    plan = Plan(space, shuffle=False, batch_size=1, tail="exact")
    assert plan.reads(2, world_size=3) == {"a": 1}
    (segment,) = plan.segments(Cursor(0, 0, 3), 2, 3)
    assert (segment.draws.tolist(), segment.valid.tolist()) == ([[1]], [False])


def test_a_finished_epoch_reads_nothing():
    space = AnchorSpace({"x": make_array("a", 20, 5)})
    assert Plan(space).reads(position=20) == {"a": 0}


def test_codes_tell_field_tiles_apart():
    chunks = np.array([[0, 1, 0], [0, 0, 1], [1, 5, 0]])
    assert reads._codes(chunks, 0, 2).tolist() == [2, 1]
