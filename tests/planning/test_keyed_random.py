import numpy as np
import pytest

from tests.each_case import each_case
from tests.planning.oracle import permuted
from torchdata_insitu.planning.keyed_random import (
    keyed_permutation,
    keyed_words,
    keyed_words_at,
)


def test_words_never_change():
    assert keyed_words(3, 7, 0, "runs").tolist() == [
        15682018172295770504,
        15501476865476760002,
        8918389222139784979,
    ]


def test_permutation_never_changes():
    assert keyed_permutation(10, 7, 3, "block", 1, 2).tolist() == [9, 1, 5, 6, 2, 8, 7, 4, 0, 3]


def test_permutation_is_the_stable_sort_of_the_words():
    assert keyed_permutation(1000, 1, 2, "runs").tolist() == permuted(1000, 1, 2, "runs")


@pytest.mark.parametrize("n", [0, 1, 2, 100])
def test_every_number_comes_once(n):
    order = keyed_permutation(n, 5, "split")
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(n))


def test_keys_are_not_added():
    assert (keyed_words(4, 0, 1, "runs") != keyed_words(4, 1, 0, "runs")).all()
    assert (keyed_words(4, 1, 1) != keyed_words(4, 11)).all()


def test_longer_streams_begin_alike():
    assert (keyed_words(100, 3, "pairs")[:10] == keyed_words(10, 3, "pairs")).all()


def test_global_random_state_is_not_touched():
    np.random.seed(0)  # noqa: NPY002 (the state that must stay as it is)
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    keyed_permutation(50, 1)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


@each_case("start", [0, 1, 3, 4, 5, 8, 93])
@each_case("n", [0, 1, 4, 7])
def test_words_are_read_at_any_place(start, n):
    assert keyed_words_at(start, start + n, 3, "mix").tolist() == (
        keyed_words(100, 3, "mix")[start : start + n].tolist()
    )
