import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torchdata_insitu.planning.draw_order import DrawOrder
from torchdata_insitu.planning.run_lengths import RunLengths


def order_of(lengths, *, seed=0, epoch=0, shuffle=True, run_chunks=1):
    return DrawOrder.of_epoch(
        RunLengths.encode(lengths), seed=seed, epoch=epoch, shuffle=shuffle, run_chunks=run_chunks
    )


def test_permutation_never_changes():
    assert order_of([1] * 10, seed=7, epoch=3).units.tolist() == [4, 6, 2, 5, 8, 9, 0, 1, 7, 3]
    assert order_of([1] * 10, seed=7, epoch=3, run_chunks=3).units.tolist() == [
        6,
        7,
        8,
        0,
        1,
        2,
        3,
        4,
        5,
        9,
    ]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 6), st.integers(0, 9))
def test_units_with_draws_come_once_and_lie_end_to_end(lengths, run_chunks, seed):
    order = order_of(lengths, seed=seed, run_chunks=run_chunks)
    assert sorted(order.units.tolist()) == [unit for unit, n in enumerate(lengths) if n]
    assert np.diff(order.firsts).tolist() == [lengths[unit] for unit in order.units.tolist()]
    assert order.n_draws == sum(lengths)


@given(st.integers(1, 40), st.integers(2, 6), st.integers(0, 9))
def test_units_of_a_run_stay_together_in_order(n_units, run_chunks, seed):
    units = order_of([1] * n_units, seed=seed, run_chunks=run_chunks).units
    starts = np.flatnonzero(np.append(-1, np.diff(units)) != 1).tolist()
    runs = [units[a:b].tolist() for a, b in zip(starts, [*starts[1:], n_units], strict=True)]
    expected = [
        list(range(first, min(first + run_chunks, n_units)))
        for first in range(0, n_units, run_chunks)
    ]
    flat = [unit for run in runs for unit in run]
    assert sorted(flat) == list(range(n_units))
    for run in expected:
        at = flat.index(run[0])
        assert flat[at : at + len(run)] == run


def test_without_shuffle_the_order_is_that_of_the_store():
    assert order_of([2, 0, 3, 1], shuffle=False).units.tolist() == [0, 2, 3]


def test_epochs_and_seeds_differ():
    orders = [order_of([1] * 50, seed=seed, epoch=epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order.units.tolist()) for order in orders}) == 4
