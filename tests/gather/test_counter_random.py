import hashlib
import json

import numpy as np
import pytest
from scipy import stats

from tests.each_case import each_case
from torchdata_insitu.gather import counter_random
from torchdata_insitu.gather.counter_random import CounterRandom
from torchdata_insitu.gather.philox import philox_4x32_10

F4, F8 = np.dtype("f4"), np.dtype("f8")
KINDS = {
    "uniform": lambda random, samples, call, n: random.uniform(
        samples, call, n, low=-1.0, high=3.0, dtype=F4
    ),
    "uniform of 64 bits": lambda random, samples, call, n: random.uniform(
        samples, call, n, low=0.0, high=1.0, dtype=F8
    ),
    "normal": lambda random, samples, call, n: random.normal(
        samples, call, n, mean=0.0, std=1.0, dtype=F4
    ),
    "normal of 64 bits": lambda random, samples, call, n: random.normal(
        samples, call, n, mean=5.0, std=2.0, dtype=F8
    ),
    "integers": lambda random, samples, call, n: random.integers(
        samples, call, n, low=-3, high=1000
    ),
}
each_kind = pytest.mark.parametrize("draw", KINDS.values(), ids=KINDS)


@each_kind
@each_case("n_values", [0, 1, 2, 3, 4, 5, 1000])
def test_a_row_does_not_depend_on_the_others(draw, n_values):
    samples = np.array([7, 0, 123, 7, 2**40 + 1])
    random = CounterRandom(0, 0, 0)
    whole = draw(random, samples, 3, n_values)
    assert whole.shape == (5, n_values)
    assert whole.flags.c_contiguous
    for row, sample in enumerate(samples):
        assert (draw(random, np.array([sample]), 3, n_values) == whole[row]).all()


@each_kind
@pytest.mark.parametrize("at_once", [1, 3, 7])
def test_how_much_is_worked_on_at_once_changes_nothing(draw, at_once, monkeypatch):
    samples, random = np.arange(5), CounterRandom(0, 0, 0)
    expected = draw(random, samples, 0, 11)
    monkeypatch.setattr(counter_random, "_BLOCKS_AT_ONCE", at_once)
    assert (draw(random, samples, 0, 11) == expected).all()


@each_kind
def test_samples_calls_places_and_keys_share_nothing(draw):
    samples = np.array([0, 1, 2**32, 2**32 + 1, 2**62])
    drawn = [
        draw(CounterRandom(*key), samples, call, 8)
        for key in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (-1, 0, 0), ("a", 0, 0)]
        for call in (0, 1, 2**32 - 1)
    ]
    rows = {tuple(row) for block in drawn for row in block.tolist()}
    assert len(rows) == len(drawn) * len(samples)


def words_of(key, sample, call, n_blocks):
    """The 32-bit words of one row, by the layout of the counter that resumed runs depend on."""
    digest = hashlib.blake2b(json.dumps(key).encode(), digest_size=8).digest()
    halves = tuple(np.frombuffer(digest, "<u4").tolist())
    counters = np.array(
        [(block, call, sample % 2**32, sample >> 32) for block in range(n_blocks)], np.uint64
    ).T.copy()
    philox_4x32_10(counters, halves)
    return counters.T.reshape(-1).tolist()


def test_the_words_of_a_row_are_where_they_are_said_to_be():
    sample = 2**35 + 3
    words = words_of(["k", 5], sample, 9, 2)
    random, samples = CounterRandom("k", 5), np.array([sample])
    single = random.uniform(samples, 9, 7, low=0.0, high=1.0, dtype=F4)
    assert single[0].tolist() == [(word >> 8) / 2**24 for word in words[:7]]
    double = random.uniform(samples, 9, 3, low=0.0, high=1.0, dtype=F8)
    pairs = zip(words[:6:2], words[1:6:2], strict=True)
    assert double[0].tolist() == [((upper << 32 | lower) >> 11) / 2**53 for upper, lower in pairs]


def test_numbers_stay_what_they_are():
    """Literals: a change of these breaks the resume of every run that draws."""
    random, samples = CounterRandom("batch transform", 7, 1, 0), np.array([3, 100_000])
    uniform = random.uniform(samples, 0, 2, low=0.0, high=1.0, dtype=F4)
    normal = random.normal(samples, 1, 2, mean=0.0, std=1.0, dtype=F4)
    assert [float(value).hex() for value in uniform.ravel()] == [
        "0x1.ccc6f60000000p-1",
        "0x1.04c5e40000000p-2",
        "0x1.3224840000000p-1",
        "0x1.e7390c0000000p-2",
    ]
    assert [float(value).hex() for value in normal.ravel()] == [
        "0x1.59d9960000000p-2",
        "0x1.5950980000000p-4",
        "-0x1.0bf8600000000p+0",
        "0x1.ad17de0000000p+0",
    ]
    assert random.integers(samples, 2, 3, low=0, high=1000).tolist() == [
        [438, 469, 532],
        [994, 974, 665],
    ]


@pytest.mark.parametrize("dtype", [F4, F8])
def test_uniform_numbers_are_uniform(dtype):
    values = CounterRandom(1, 0, 0).uniform(
        np.arange(2000), 0, 100, low=-2.0, high=6.0, dtype=dtype
    )
    assert values.min() >= -2
    assert values.max() < 6
    assert stats.kstest(values.ravel(), stats.uniform(-2, 8).cdf).pvalue > 0.001
    assert stats.kstest(values[:, 0], stats.uniform(-2, 8).cdf).pvalue > 0.001


@pytest.mark.parametrize("dtype", [F4, F8])
def test_normal_numbers_are_normal(dtype):
    values = CounterRandom(2, 0, 0).normal(np.arange(2000), 0, 100, mean=3.0, std=2.0, dtype=dtype)
    scores = ((values.astype("f8") - 3) / 2).ravel()
    assert stats.kstest(scores, stats.norm.cdf).pvalue > 0.001
    n = len(scores)
    # Each moment within four of its standard errors.
    assert abs(scores.mean()) < 4 / n**0.5
    assert abs(scores.var() - 1) < 4 * (2 / n) ** 0.5
    assert abs(stats.skew(scores)) < 4 * (6 / n) ** 0.5
    assert abs(stats.kurtosis(scores)) < 4 * (24 / n) ** 0.5


@pytest.mark.parametrize("low, high", [(0, 1), (0, 2), (-5, 2), (0, 10), (0, 256)])
def test_whole_numbers_are_equally_likely(low, high):
    values = CounterRandom(3, 0, 0).integers(np.arange(2000), 0, 50, low=low, high=high)
    found, counts = np.unique(values, return_counts=True)
    assert found.tolist() == list(range(low, high))
    if high - low > 1:
        assert stats.chisquare(counts).pvalue > 0.001


@pytest.mark.parametrize(
    "low, high",
    [
        (-(2**63), 2**63),
        (0, 2**63),
        (-(2**63), 0),
        (2**62, 2**62 + 1),
        (-5, 2**40 + 7),
        (0, 2**32),
        (-(2**63), -(2**63) + 3),
    ],
)
def test_whole_numbers_of_any_range_are_the_exact_product(low, high):
    found = CounterRandom(4, 0).integers(np.arange(50), 0, 4, low=low, high=high)
    for sample, row in enumerate(found.tolist()):
        words = words_of([4, 0], sample, 0, 2)
        wide = [upper << 32 | lower for upper, lower in zip(words[::2], words[1::2], strict=True)]
        assert row == [low + (word * (high - low) >> 64) for word in wide]


def test_the_upper_end_is_never_reached_by_rounding():
    random, samples = CounterRandom(5, 0, 0), np.arange(1000)
    for low, high in ((1.0, 1.0 + 2**-22), (1e6, 1e6 + 1), (-1e-40, 0.0), (-3e38, 3e37)):
        values = random.uniform(samples, 0, 20, low=low, high=high, dtype=F4)
        assert values.min() >= np.float32(low)
        assert values.max() < np.float32(high)


@each_kind
def test_neighbours_are_not_correlated(draw):
    """Samples, epochs, calls, transforms and numbers of a row that follow each other."""
    n = 20_000
    samples = np.arange(n)
    first = draw(CounterRandom(0, 0, 0), samples, 0, 2).astype("f8")
    others = {
        "sample": np.roll(first[:, 0], 1),
        "number": first[:, 1],
        "call": draw(CounterRandom(0, 0, 0), samples, 1, 1)[:, 0],
        "epoch": draw(CounterRandom(0, 1, 0), samples, 0, 1)[:, 0],
        "seed": draw(CounterRandom(1, 0, 0), samples, 0, 1)[:, 0],
        "place": draw(CounterRandom(0, 0, 1), samples, 0, 1)[:, 0],
    }
    for name, other in others.items():
        assert abs(np.corrcoef(first[:, 0], other)[0, 1]) < 4 / n**0.5, name
