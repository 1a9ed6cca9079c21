"""The ledger: whatever stops, and however many ranks go on, each sample comes once and in order."""

import itertools
import random

import pytest

from tests.contracts.worlds import N_DRAWS, Job, World
from torchdata_insitu.planning.rank_stream import TAILS

# This epoch and the two after it.
N_EPOCHS = 3
SIZES = (1, 2, 3, 4, 6, 8)
pytestmark = pytest.mark.filterwarnings("ignore:.*lanes on .* ranks")


@pytest.mark.parametrize("tail", TAILS)
def test_a_job_goes_on_exactly_from_every_position_of_an_epoch(tail):
    world = World(2, 3, tail)
    n_steps = -(-N_DRAWS // 6)
    for n_before in range(1, n_steps + 1):
        job = Job()
        job.run(world, n_before)
        job.run_epochs(world, N_EPOCHS)
        job.check_ledger()


@pytest.mark.parametrize("lanes", [None, 4])
def test_five_hops_of_ranks_and_batch_size(lanes):
    job = Job(lanes)
    hops = [(4, 2, 1), (2, 3, 1), (8, 1, 1), (3, 2, 1), (1, 5, 1), (6, 1, 1)]
    for world_size, batch_size, n_steps in hops:
        job.run(World(world_size, batch_size, "exact"), n_steps)
        assert job.epoch == 0
    job.run_epochs(World(2, 4, "exact"), N_EPOCHS)
    job.check_ledger()
    assert set(job.left_out.values()) == {0}


@pytest.mark.parametrize("seed", range(40))
def test_a_history_of_ranks_batch_sizes_and_tails(seed):
    choose = random.Random(seed)
    job = Job(choose.choice([None, None, *range(1, 7)]))
    for _ in range(choose.randint(2, 5)):
        job.run(some_world(choose), choose.randint(1, 6))
    job.run_epochs(some_world(choose), N_EPOCHS)
    job.check_ledger()


def some_world(choose):
    return World(choose.randint(1, 6), choose.randint(1, 6), choose.choice(TAILS))


@pytest.mark.slow
@pytest.mark.parametrize("first, second", list(itertools.product(SIZES, SIZES)))
def test_every_three_world_sizes_one_after_the_other(first, second):
    for third in SIZES:
        job = Job()
        job.run(World(first, 2), 1)
        job.run(World(second, 2), 1)
        assert job.epoch == 0
        job.run_epochs(World(third, 2, "exact"), N_EPOCHS)
        job.check_ledger()
        assert set(job.left_out.values()) == {0}


@pytest.mark.parametrize("n_before", [0, 1, 4])
def test_one_global_batch_size_gives_the_same_global_batches_on_any_number_of_ranks(n_before):
    """Also from a position that is no multiple of the size."""
    expected = None
    for world_size in (1, 2, 3, 4, 6, 12):
        job = Job(lanes=4)
        if n_before:
            job.run(World(1, 7), n_before)
        job.run_epochs(World(world_size, 12 // world_size, "exact"), 2)
        batches = list(map(sorted, job.global_batches))
        assert expected is None or batches == expected
        expected = batches
