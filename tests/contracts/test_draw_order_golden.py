"""The draw order is a contract: other values here are another order version."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY, counted
from tests.contracts.written_order import order, philox_words
from torchdata_insitu.testing import make_store

# Draws of 17 samples in chunks of 3, in blocks of 2: by (seed, epoch, lanes, run_chunks).
# fmt: off
GOLDEN = {
    (0, 0, 1, 1): [7, 8, 6, 12, 13, 4, 3, 5, 14, 9, 15, 11, 16, 10, 1, 0, 2],
    (0, 1, 1, 1): [5, 4, 3, 6, 7, 14, 8, 13, 12, 9, 10, 15, 11, 16, 1, 2, 0],
    (1, 0, 1, 1): [7, 8, 6, 12, 16, 13, 15, 14, 9, 0, 10, 2, 11, 1, 3, 5, 4],
    (1, 1, 1, 1): [2, 0, 1, 12, 13, 5, 4, 3, 14, 16, 15, 9, 10, 11, 6, 7, 8],
    (0, 0, 1, 2): [13, 14, 12, 7, 8, 16, 15, 6, 2, 9, 0, 11, 1, 10, 4, 3, 5],
    (0, 1, 1, 2): [8, 7, 6, 9, 10, 14, 11, 13, 12, 15, 16, 1, 0, 2, 4, 5, 3],
    (1, 0, 1, 2): [13, 14, 12, 15, 2, 16, 1, 0, 3, 6, 4, 8, 5, 7, 9, 11, 10],
    (1, 1, 1, 2): [2, 0, 1, 6, 7, 5, 4, 3, 8, 10, 9, 11, 12, 13, 14, 15, 16],
    (0, 0, 3, 1): [7, 13, 16, 8, 14, 15, 6, 12, 1, 4, 11, 0, 3, 10, 2, 5, 9],
    (0, 1, 3, 1): [5, 12, 15, 4, 14, 16, 3, 13, 2, 6, 9, 1, 7, 11, 0, 8, 10],
    (1, 0, 3, 1): [7, 15, 2, 8, 16, 1, 6, 9, 4, 12, 11, 5, 13, 10, 3, 14, 0],
    (1, 1, 3, 1): [2, 13, 10, 0, 14, 11, 1, 12, 6, 5, 9, 8, 4, 16, 7, 3, 15],
    (0, 0, 3, 2): [13, 8, 2, 14, 7, 1, 12, 0, 4, 16, 11, 3, 15, 10, 5, 6, 9],
    (0, 1, 3, 2): [8, 12, 1, 7, 14, 2, 6, 13, 5, 9, 15, 4, 10, 0, 3, 11, 16],
    (1, 0, 3, 2): [13, 1, 8, 14, 2, 7, 12, 3, 10, 15, 5, 11, 16, 4, 9, 0, 6],
    (1, 1, 3, 2): [2, 7, 12, 0, 8, 13, 1, 6, 14, 5, 11, 15, 4, 10, 16, 3, 9],
}
# fmt: on


def loader_over(n_samples, chunk, **plan):
    store = make_store({"t": counted((n_samples, 1))}, chunks=(chunk, 1))
    views = {"x": tdi.open_arrays(store)["t"]}
    return tdi.build_loader(store, views, budget_bytes=PLENTY, **plan)


def samples_of(batches):
    return [sample for batch in batches for sample in batch["sample_index"].tolist()]


@pytest.mark.parametrize("seed, epoch, lanes, run_chunks", GOLDEN)
def test_draws_of_a_small_plan(seed, epoch, lanes, run_chunks):
    golden = GOLDEN[seed, epoch, lanes, run_chunks]
    plan = {"seed": seed, "lanes": lanes, "run_chunks": run_chunks, "block_chunks": 2}
    with loader_over(17, 3, batch_size=4, **plan) as loader:
        assert loader.plan.draws(epoch, lanes=lanes)[:, 0].tolist() == golden
        loader.set_epoch(epoch)
        assert samples_of(loader) == golden
    units = [list(range(first, min(first + 3, 17))) for first in range(0, 17, 3)]
    written = order(
        units, seed=seed, epoch=epoch, lanes=lanes, run_chunks=run_chunks, block_chunks=2
    )
    assert written == golden


def test_golden_order_hash():
    """Blocks of 1, 2, 4, 8 and 16 units, which the small plan is too short for."""
    with loader_over(600, 5, batch_size=32, seed=7, lanes=2) as loader:
        draws = loader.plan.draws(3, lanes=2)[:, 0]
        assert loader.plan.run_chunks == 1
        assert loader.plan.block_chunks == 16
    units = [list(range(first, first + 5)) for first in range(0, 600, 5)]
    assert draws.tolist() == order(units, seed=7, epoch=3, lanes=2, run_chunks=1, block_chunks=16)
    digest = hashlib.blake2b(draws.astype("<i8").tobytes(), digest_size=8).hexdigest()
    assert digest == "ecdb7d1089890c96"


def test_without_shuffle_the_order_is_that_of_the_store():
    with loader_over(17, 3, batch_size=4, shuffle=False, seed=5) as loader:
        for _ in range(2):
            assert samples_of(loader) == list(range(17))


def test_with_offsets_runs_are_a_quarter_of_a_block():
    store = make_store({"t": (64, 1)}, chunks=(2, 1))
    t = tdi.open_arrays(store)["t"]
    with tdi.build_loader(
        store, {"x": t.window(0, 1)}, batch_size=8, budget_bytes=PLENTY
    ) as loader:
        assert loader.plan.run_chunks == 4
        # The last sample has no following one: the last unit is one draw shorter.
        units = [list(range(first, min(first + 2, 63))) for first in range(0, 64, 2)]
        written = order(units, seed=0, epoch=0, lanes=1, run_chunks=4, block_chunks=16)
        assert samples_of(loader) == written


@pytest.mark.parametrize("key", [0, 1, 2**64 - 1, 2**64, 2**128 - 1, 0x0123456789ABCDEF << 60])
def test_the_generator_is_the_one_of_the_paper(key):
    assert philox_words(13, key) == np.random.Philox(key=key).random_raw(13).tolist()


@st.composite
def plans(draw):
    n_samples, chunk = draw(st.integers(1, 60)), draw(st.integers(1, 7))
    plan = {
        "seed": draw(st.integers(0, 2**40)),
        "lanes": draw(st.integers(1, 5)),
        "block_chunks": draw(st.integers(1, 20)),
        "run_chunks": draw(st.integers(1, 4)),
    }
    return n_samples, chunk, plan


@pytest.mark.filterwarnings("ignore:.* lanes on .* ranks")
@settings(max_examples=40)
@given(case=plans(), epoch=st.integers(0, 5), world_size=st.integers(1, 3))
def test_ranks_together_hand_out_the_written_order(case, epoch, world_size):
    n_samples, chunk, plan = case
    units = [
        list(range(first, min(first + chunk, n_samples))) for first in range(0, n_samples, chunk)
    ]
    written = order(units, epoch=epoch, **plan)
    for rank in range(world_size):
        ranks = {"rank": rank, "world_size": world_size}
        with loader_over(n_samples, chunk, batch_size=3, tail="exact", **plan, **ranks) as loader:
            loader.set_epoch(epoch)
            batches = list(loader)
            valid = [ok for batch in batches for ok in batch["valid"].tolist()]
            samples = [k for k, ok in zip(samples_of(batches), valid, strict=True) if ok]
            assert samples == written[rank::world_size]
