import hashlib
import json
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contracts.refusals import refused
from torchdata_insitu.errors import PlanError
from torchdata_insitu.planning.mix_choices import MixChoices

WEIGHTS = {"a": 0.5, "b": 0.2, "c": 0.3}
CHOICES = MixChoices(WEIGHTS, seed=7)


def digits(chosen):
    return "".join(map(str, chosen.tolist()))


def test_choices_never_change():
    assert digits(CHOICES.of_steps(0, 0, 60)) == (
        "000022021201100002020102100220200010200120210220010210202002"
    )
    assert digits(CHOICES.of_steps(3, 1_000_000, 1_000_060)) == (
        "222120000001020210221000201210000220222101001002210210120120"
    )
    assert digits(CHOICES.of_steps(0, 0, 60, among=(0, 2))) == (
        "000022022200000002020002000220200000200020200220000220202002"
    )


def drawn(n, weights, seed, epoch):
    """The choices from their description, in exact arithmetic and from the first word on."""
    digest = hashlib.blake2b(json.dumps([seed, epoch, "mix"]).encode(), digest_size=16).digest()
    words = np.random.Philox(key=int.from_bytes(digest, "little")).random_raw(n).tolist()
    parts = [Fraction(weight) for weight in weights]
    edges = [math.floor(sum(parts[: n + 1]) * 2**64 / sum(parts)) for n in range(len(parts))]
    return [next(n for n, edge in enumerate(edges) if word < edge) for word in words]


weights_of_sources = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=5)


@given(weights_of_sources, st.integers(0, 2**40), st.integers(0, 5))
def test_choices_are_words_laid_into_weights(weights, seed, epoch):
    choices = MixChoices({f"s{n}": weight for n, weight in enumerate(weights)}, seed=seed)
    assert choices.of_steps(epoch, 0, 40).tolist() == drawn(40, weights, seed, epoch)


@given(st.integers(0, 10**9), st.integers(0, 30), st.integers(0, 30))
def test_any_stretch_is_read_without_the_one_before(start, n_before, n):
    whole = CHOICES.of_steps(1, start, start + n_before + n)
    assert (
        whole[n_before:].tolist()
        == CHOICES.of_steps(1, start + n_before, start + n_before + n).tolist()
    )


@pytest.mark.parametrize("among", [None, (0, 1, 2), (1, 2), (1,)])
def test_one_after_the_other_is_the_same(among):
    expected = CHOICES.of_steps(2, 4080, 4120, among).tolist()
    assert [CHOICES.at(2, step, among) for step in range(4080, 4120)] == expected


def test_the_order_in_which_sources_are_given_does_not_matter():
    turned = MixChoices(dict(reversed(WEIGHTS.items())), seed=7)
    assert turned.names == CHOICES.names == ("a", "b", "c")
    assert turned.weights == CHOICES.weights
    assert digits(turned.of_steps(0, 0, 100)) == digits(CHOICES.of_steps(0, 0, 100))


def test_only_the_proportion_of_weights_matters_to_the_choices():
    doubled = MixChoices({name: 2 * weight for name, weight in WEIGHTS.items()}, seed=7)
    assert digits(doubled.of_steps(0, 0, 100)) == digits(CHOICES.of_steps(0, 0, 100))


def test_seeds_and_epochs_are_not_added():
    def first(seed, epoch):
        return digits(MixChoices(WEIGHTS, seed=seed).of_steps(epoch, 0, 40))

    assert len({first(seed, epoch) for seed in range(4) for epoch in range(4)}) == 16


@pytest.mark.parametrize("among", [(0, 1, 2), (0, 2), (2,)])
def test_sources_are_chosen_in_proportion_to_their_weights(among):
    """Within five standard deviations, which a fair draw leaves once in two million times."""
    n = 200_000
    counts = np.bincount(CHOICES.of_steps(0, 0, n, among), minlength=3)
    total = sum(CHOICES.weights[number] for number in among)
    for number in range(3):
        share = CHOICES.weights[number] / total if number in among else 0.0
        assert abs(counts[number] - n * share) <= 5 * math.sqrt(n * share * (1 - share))


def test_successive_choices_are_independent():
    """Pairs come as often as the product of the weights says, by the same bound."""
    n = 200_000
    chosen = CHOICES.of_steps(0, 0, 2 * n).reshape(n, 2)
    pairs = np.bincount(3 * chosen[:, 0] + chosen[:, 1], minlength=9)
    shares = np.outer(CHOICES.weights, CHOICES.weights).ravel()
    assert (abs(pairs - n * shares) <= 5 * np.sqrt(n * shares * (1 - shares))).all()


def test_the_share_of_a_source_is_its_weight_in_proportion():
    assert [CHOICES.share(number) for number in range(3)] == pytest.approx([0.5, 0.2, 0.3])


@pytest.mark.parametrize("weights", [(1e-300, 1e300), (5e-324, 1.0), (1e300, 1e-300)])
def test_a_weight_too_small_for_any_word_is_never_chosen_beside_others(weights):
    choices = MixChoices(dict(zip("ab", weights, strict=True)))
    rare = int(weights[0] > weights[1])
    assert set(choices.of_steps(0, 0, 1000).tolist()) == {1 - rare}
    assert choices.share(rare) < 1e-18
    assert set(choices.of_steps(0, 0, 10, among=(rare,)).tolist()) == {rare}


def test_one_source_is_always_chosen():
    assert set(MixChoices({"only": 3}).of_steps(0, 0, 100).tolist()) == {0}


@pytest.mark.parametrize(
    "weight", [0, 0.0, -1, -0.5, math.nan, math.inf, -math.inf, "1", None, True, 1j]
)
def test_a_weight_has_to_be_positive_and_finite(weight):
    with refused(PlanError, "'b'", repr(weight), "positive, finite"):
        MixChoices({"a": 1.0, "b": weight})


@pytest.mark.parametrize("weight", [1, np.float32(0.5), np.int64(2), np.float64(0.25)])
def test_numbers_of_numpy_are_weights(weight):
    assert MixChoices({"a": weight}).weights == (float(weight),)


def test_no_source_is_refused():
    with refused(PlanError, "no source"):
        MixChoices({})


def test_names_are_text():
    with refused(PlanError, "3", "names are text"):
        MixChoices({3: 1.0})


@pytest.mark.parametrize("seed", [1.0, "x", None, True])
def test_a_seed_is_a_whole_number(seed):
    with refused(PlanError, "seed", repr(seed)):
        MixChoices(WEIGHTS, seed=seed)


def test_a_copy_chooses_alike():
    CHOICES.at(0, 0)
    copied = pickle.loads(pickle.dumps(CHOICES))
    assert digits(copied.of_steps(0, 0, 50)) == digits(CHOICES.of_steps(0, 0, 50))
