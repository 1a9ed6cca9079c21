import numpy as np
from scipy import special

from torchdata_insitu.gather.normal_quantile import normal_quantile


def test_quantiles_are_those_of_scipy_far_into_both_tails():
    ends = 0.5 - 2.0 ** -np.arange(2, 54)
    offsets = np.concatenate([np.linspace(-0.5, 0.5, 10_001)[1:-1], ends, -ends])
    lower = 0.5 - np.abs(offsets)
    expected = np.copysign(special.ndtri(lower), offsets)
    np.testing.assert_allclose(normal_quantile(offsets), expected, rtol=3e-15, atol=0)


def test_both_sides_are_mirrored_bit_for_bit():
    offsets = np.random.default_rng(0).uniform(0, 0.5, 10_000)
    assert (normal_quantile(-offsets) == -normal_quantile(offsets)).all()


def test_a_value_does_not_depend_on_its_neighbours():
    offsets = np.random.default_rng(1).uniform(-0.5, 0.5, 1000)
    whole = normal_quantile(offsets)
    assert [normal_quantile(offsets[n : n + 1])[0] for n in range(1000)] == whole.tolist()


def test_values_are_the_same_on_every_machine():
    """Literals: only operations that IEEE 754 rounds in one way were used."""
    found = normal_quantile(np.array([-0.3, 0.45, 0.4999999, 0.5 - 2.0**-53]))
    assert [value.hex() for value in found.tolist()] == [
        "-0x1.aee8fa73a1333p-1",
        "0x1.a515209676abdp+0",
        "0x1.4cc1f26b16f83p+2",
        "0x1.06b48528cea51p+3",
    ]
