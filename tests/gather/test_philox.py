import numpy as np
import pytest

from torchdata_insitu.gather.philox import philox_4x32_10

# Source: Random123 1.14, `kat_vectors`, lines "philox4x32 10": counter, key, words.
KNOWN = {
    "zeros": ([0, 0, 0, 0], (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    "ones": (
        [0xFFFFFFFF] * 4,
        (0xFFFFFFFF, 0xFFFFFFFF),
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
    ),
    "digits of pi": (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
}


@pytest.mark.parametrize("case", KNOWN)
def test_words_are_the_published_ones(case):
    counter, key, words = KNOWN[case]
    counters = np.array(counter, np.uint64).reshape(4, 1)
    philox_4x32_10(counters, key)
    assert " ".join(f"{word:08x}" for word in counters[:, 0].tolist()) == words


def test_every_counter_gets_its_own_words():
    counters = np.random.default_rng(0).integers(0, 2**32, (4, 100), np.uint64)
    alone = counters.copy()
    philox_4x32_10(counters, (5, 6))
    for number in range(100):
        one = alone[:, number : number + 1].copy()
        philox_4x32_10(one, (5, 6))
        assert one[:, 0].tolist() == counters[:, number].tolist()
    assert counters.max() < 2**32
