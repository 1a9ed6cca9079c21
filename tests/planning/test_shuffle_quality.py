import time

import pytest

from tests.planning.fake_space import FakeSpace
from torchdata_insitu.errors import PlanError
from torchdata_insitu.planning.plan import Plan
from torchdata_insitu.planning.shuffle_quality import ShuffleQuality, shuffle_quality

MEASURES = ("order", "mixing", "neighbours", "partners", "overall")


def test_the_order_of_the_store_is_no_shuffle():
    quality = shuffle_quality(Plan(FakeSpace([24] * 400), shuffle=False, batch_size=32))
    for measure in MEASURES:
        assert getattr(quality, measure) < 0.02


def test_a_random_permutation_of_all_draws_is_as_good_as_one():
    quality = shuffle_quality(Plan(FakeSpace([1] * 8000), batch_size=32))
    for measure in MEASURES:
        assert getattr(quality, measure) > 0.95


def test_larger_blocks_shuffle_better():
    qualities = [
        shuffle_quality(Plan(FakeSpace([24] * 400), block_chunks=block_chunks, batch_size=32))
        for block_chunks in (1, 4, 16, 64)
    ]
    for measure in ("mixing", "neighbours", "partners", "overall"):
        values = [getattr(quality, measure) for quality in qualities]
        assert values == sorted(values)
    assert qualities[0].overall < 0.05
    assert qualities[-1].overall > 0.6


def test_a_block_shuffle_without_permuted_units_is_found_out():
    # One run holds every unit, so only the draws of blocks are permuted.
    plan = Plan(FakeSpace([24] * 400), run_chunks=400, block_chunks=16, batch_size=32)
    quality = shuffle_quality(plan)
    assert (quality.order < 0.05, quality.partners < 0.1) == (True, True)
    assert quality.neighbours > 0.8


def test_more_lanes_mix_better():
    single, many = (
        shuffle_quality(
            Plan(FakeSpace([24] * 400), block_chunks=4, batch_size=32 // world_size),
            world_size=world_size,
        )
        for world_size in (1, 8)
    )
    assert many.mixing > single.mixing


def test_unshuffled_lanes_are_no_shuffle():
    plan = Plan(FakeSpace([24] * 400), shuffle=False, batch_size=8)
    assert shuffle_quality(plan, world_size=4).overall < 0.05


@pytest.mark.parametrize("lengths", [[2], [1, 1], [5, 0, 1], [1] * 7])
def test_few_draws_have_a_quality(lengths):
    quality = shuffle_quality(Plan(FakeSpace(lengths), batch_size=4))
    assert all(0 <= getattr(quality, measure) <= 1 for measure in MEASURES)


def test_the_work_is_bounded():
    began = time.perf_counter()
    shuffle_quality(Plan(FakeSpace([100] * 20_000), batch_size=32))
    assert time.perf_counter() - began < 10


def test_the_overall_quality_is_the_weakest_measure():
    assert ShuffleQuality(order=0.9, mixing=0.8, neighbours=0.7, partners=0.95).overall == 0.7


@pytest.mark.parametrize("lengths, epochs", [([9], 1), ([1], 2), ([0], 2)])
def test_too_little_to_compare_is_refused(lengths, epochs):
    with pytest.raises(PlanError, match=f"{epochs} epochs of {sum(lengths)} draws"):
        shuffle_quality(Plan(FakeSpace(lengths)), epochs=epochs)
