"""Philox-4x32-10: a bijection of 128-bit counters, for random words without a state.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011,
section 4.3; the constants are those of the paper and of its library Random123.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["philox_4x32_10"]

_N_ROUNDS = 10
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox_4x32_10(counters: NDArray[np.uint64], key: tuple[int, int]) -> None:
    """Turn counters into random words, in place.

    The words stand in 64 bits each, so that a product of two of them is one operation.

    Args:
        counters: `(4, n)` uint64, each below `2 ** 32`; the words afterwards.
        key: two whole numbers below `2 ** 32`.

    Example:
        >>> counters = np.zeros((4, 1), np.uint64)
        >>> philox_4x32_10(counters, (0, 0))
        >>> [f"{word:08x}" for word in counters[:, 0].tolist()]
        ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    # First and third word are multiplied, second and fourth are mixed in: each pair at once.
    multiplied, mixed = counters[::2], counters[1::2]
    products = np.empty_like(multiplied)
    crossed = products[::-1]
    for number in range(_N_ROUNDS):
        round_key = [[(key[n] + number * _WEYL[n]) & int(_LOW)] for n in range(2)]
        np.multiply(multiplied, _MULTIPLIERS, out=products)
        np.right_shift(crossed, _HALF, out=multiplied)
        multiplied ^= mixed
        multiplied ^= np.array(round_key, np.uint64)
        np.bitwise_and(crossed, _LOW, out=mixed)
