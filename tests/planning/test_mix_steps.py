import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contracts.refusals import refused
from torchdata_insitu.errors import PlanError
from torchdata_insitu.planning.mix_choices import MixChoices
from torchdata_insitu.planning.mix_steps import STOPS, MixSteps

CHOICES = MixChoices({"a": 0.5, "b": 0.2, "c": 0.3}, seed=7)
LEFT = [40, 30, 20]


@pytest.mark.parametrize(
    "stop, n_steps, counts",
    [("first", 67, [36, 11, 20]), ("all", 90, [40, 30, 20]), ("cycle", 172, [81, 30, 61])],
)
def test_lengths_never_change(stop, n_steps, counts):
    steps = MixSteps(CHOICES, stop)
    assert steps.n_steps(0, 0, LEFT) == n_steps
    assert steps.counts(0, 0, n_steps, LEFT) == counts


def walked(choices, stop, *, epoch, step, left, were, passes):
    """Sources of the steps of an epoch, one after the other, from the stop rules in words."""
    left, were = list(left), list(were)
    found = []
    while True:
        if stop == "all":
            among = [number for number, n in enumerate(left) if n > 0]
            if not among:
                return found
            number = choices.of_steps(epoch, step, step + 1, among).tolist()[0]
        else:
            number = choices.of_steps(epoch, step, step + 1).tolist()[0]
        if stop == "first" and left[number] == 0:
            return found
        if stop == "cycle":
            if all(was or n == 0 for was, n in zip(were, left, strict=True)):
                return found
            if left[number] == 0:
                left[number], were[number] = passes[number], True
        left[number] -= 1
        found.append(number)
        step += 1


@st.composite
def places(draw):
    n_sources = draw(st.integers(1, 4))
    each = {"min_size": n_sources, "max_size": n_sources}
    weights = draw(st.lists(st.floats(0.1, 3), **each))
    choices = MixChoices(
        {f"s{n}": weight for n, weight in enumerate(weights)}, seed=draw(st.integers(0, 999))
    )
    left = draw(st.lists(st.integers(0, 12), **each))
    were = draw(st.lists(st.booleans(), **each))
    passes = [n + draw(st.integers(1, 5)) for n in left]
    return choices, draw(st.integers(0, 3)), draw(st.integers(0, 5000)), left, were, passes


@pytest.mark.parametrize("stop", STOPS)
@given(places())
def test_steps_are_those_of_a_walk(stop, place):
    choices, epoch, step, left, were, passes = place
    were = were if stop == "cycle" else [False] * len(left)
    expected = walked(choices, stop, epoch=epoch, step=step, left=left, were=were, passes=passes)
    steps = MixSteps(choices, stop)
    assert steps.n_steps(epoch, step, left, were) == len(expected)
    assert steps.source(epoch, step, left, were) == (expected[0] if expected else None)
    for n in {0, len(expected) // 2, len(expected)}:
        counts = [expected[:n].count(number) for number in range(len(left))]
        assert steps.counts(epoch, step, n, left) == counts


@pytest.mark.parametrize("stop", STOPS)
def test_long_epochs_are_counted_in_stretches(stop):
    left = [150_000, 70_001, 99_999]
    steps = MixSteps(CHOICES, stop)
    n_steps = steps.n_steps(1, 3, left)
    counts = steps.counts(1, 3, n_steps, left)
    assert sum(counts) == n_steps
    if stop == "all":
        assert counts == left
    elif stop == "first":
        assert any(n == most for n, most in zip(counts, left, strict=True))
        number = CHOICES.at(1, 3 + n_steps)
        assert counts[number] == left[number]
    else:
        assert all(n >= least for n, least in zip(counts, left, strict=True))
        # With one step less, one source is not through.
        short = steps.counts(1, 3, n_steps - 1, left)
        assert any(n < least for n, least in zip(short, left, strict=True))


def test_what_was_exhausted_before_is_not_waited_for():
    steps = MixSteps(CHOICES, "cycle")
    n_without = steps.n_steps(0, 0, LEFT, [False, True, False])
    assert n_without < steps.n_steps(0, 0, LEFT)
    assert steps.n_steps(0, 0, LEFT, [True, True, True]) == 0
    assert steps.source(0, 0, LEFT, [True, True, True]) is None
    assert steps.n_steps(0, 0, [0, 0, 0]) == 0


@pytest.mark.parametrize("weight", [1e-12, 1e-300])
def test_a_source_that_would_never_be_through_is_refused(weight):
    choices = MixChoices({"often": 1.0, "rare": weight})
    with refused(PlanError, "'rare'", "100 batches", "stop='cycle'", "more weight"):
        MixSteps(choices, "cycle").n_steps(0, 0, [5, 100])
    # It is no trouble where nobody waits for it, or nothing else is left.
    assert MixSteps(choices, "first").n_steps(0, 0, [5, 100]) == 5
    assert MixSteps(choices, "all").n_steps(0, 0, [5, 100]) == 105
    assert MixSteps(choices, "all").counts(0, 0, 105, [5, 100]) == [5, 100]


@pytest.mark.parametrize("stop", ["last", "", None, "FIRST", ["first"]])
def test_an_unknown_stop_rule_is_refused(stop):
    with refused(PlanError, repr(stop), "'first', 'all', 'cycle'"):
        MixSteps(CHOICES, stop)
