"""Random numbers for rows, each a function of a key, the row's sample and the number of the call.

A row of a batch then gets the same numbers wherever it stands and whoever asks: nothing is kept
between two calls, so that there is nothing to save, to split over ranks or to put back.
"""

import hashlib
import json
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.gather.normal_quantile import normal_quantile
from torchdata_insitu.gather.philox import philox_4x32_10

__all__ = ["CounterRandom"]

_WORDS_PER_BLOCK = 4
# What is worked on at once stays in the cache of a core.
_BLOCKS_AT_ONCE = 8192
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

type _Words = NDArray[np.uint64]


class CounterRandom:
    """Numbers of one key.

    The counter of Philox-4x32-10 is laid out as (block within the row, call, lower and upper half
    of the sample), so that no two rows, calls or places in a row ever share a word.

    Example:
        >>> random = CounterRandom(7, 0, 0)
        >>> pair = random.integers(np.array([12, 5]), 0, 2, low=0, high=100)
        >>> (pair[1] == random.integers(np.array([5]), 0, 2, low=0, high=100)).all()
        np.True_
    """

    def __init__(self, *key: int | str) -> None:
        """Take what the numbers are for.

        Args:
            key: text and whole numbers. They are hashed (BLAKE2b of their JSON), never added: two
                keys have nothing in common.
        """
        digest = hashlib.blake2b(json.dumps(key).encode(), digest_size=8).digest()
        self._key = (int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little"))

    def uniform(
        self,
        samples: NDArray[np.int64],
        call: int,
        n_values: int,
        *,
        low: float,
        high: float,
        dtype: np.dtype,
    ) -> NDArray[np.floating]:
        """Numbers from `low` on and below `high`, of 24 random bits in float32 and 53 in float64.

        Args:
            samples: `(n,)`, what each row is.
            call: number of the call, below `2 ** 32`.
            n_values: numbers in a row.
            low: smallest one.
            high: above all of them.
            dtype: float32 or float64.

        Returns:
            `(n, n_values)`.
        """
        is_double = dtype == np.float64
        span = dtype.type(high - low)
        # Rounding may reach `high`, which is outside.
        most = np.nextafter(dtype.type(high), dtype.type(low))

        def convert(words: _Words) -> NDArray[np.floating]:
            bits = words >> np.uint64(11 if is_double else 8)
            values: NDArray[np.floating] = bits.astype(dtype)
            values *= dtype.type(2.0 ** (-53 if is_double else -24))
            values *= span
            values += dtype.type(low)
            np.minimum(values, most, out=values)
            return values

        return self._draw(samples, call, n_values, convert, dtype, is_double=is_double)

    def normal(
        self,
        samples: NDArray[np.int64],
        call: int,
        n_values: int,
        *,
        mean: float,
        std: float,
        dtype: np.dtype,
    ) -> NDArray[np.floating]:
        """Normally distributed numbers, by the quantile function.

        They reach 6.3 standard deviations in float32 and 8.2 in float64.

        Args:
            samples: `(n,)`, what each row is.
            call: number of the call, below `2 ** 32`.
            n_values: numbers in a row.
            mean: of the distribution.
            std: standard deviation.
            dtype: float32 or float64.

        Returns:
            `(n, n_values)`.
        """
        is_double = dtype == np.float64
        n_bits = 52 if is_double else 32

        def convert(words: _Words) -> NDArray[np.floating]:
            bits = words >> np.uint64(12) if is_double else words
            # Midpoints of equal cells: never 0 or 1, and as many above one half as below.
            offsets = bits.astype(np.float64)
            offsets += 0.5
            offsets *= 2.0**-n_bits
            offsets -= 0.5
            values = normal_quantile(offsets)
            values *= std
            values += mean
            return values

        return self._draw(samples, call, n_values, convert, dtype, is_double=is_double)

    def integers(
        self, samples: NDArray[np.int64], call: int, n_values: int, *, low: int, high: int
    ) -> NDArray[np.int64]:
        """Whole numbers from `low` on and below `high`.

        The probability of each differs from that of another by `2 ** -64` at most.

        Args:
            samples: `(n,)`, what each row is.
            call: number of the call, below `2 ** 32`.
            n_values: numbers in a row.
            low: smallest one.
            high: above all of them.

        Returns:
            `(n, n_values)` int64.
        """
        upper, lower = (np.uint64(half) for half in divmod(high - low, 2**32))
        start = np.uint64(low % 2**64)

        def convert(words: _Words) -> NDArray[np.int64]:
            # The upper half of the 128-bit product of word and range, in digits of 32 bits.
            word_upper, word_lower = words >> _HALF, words & _LOW
            middle = word_upper * lower + (word_lower * lower >> _HALF)
            carried = word_lower * upper + (middle & _LOW)
            product: _Words = word_upper * upper + (middle >> _HALF) + (carried >> _HALF)
            product += start
            return product.view(np.int64)

        return self._draw(samples, call, n_values, convert, np.dtype(np.int64), is_double=True)

    def _draw[S: np.generic](
        self,
        samples: NDArray[np.int64],
        call: int,
        n_values: int,
        convert: Callable[[_Words], NDArray[S]],
        dtype: np.dtype[S],
        *,
        is_double: bool,
    ) -> NDArray[S]:
        """Give each row its words, 32 bits a value or 64, and turn them into values."""
        per_block = _WORDS_PER_BLOCK // (2 if is_double else 1)
        n_blocks = -(-n_values // per_block)
        values = np.empty((len(samples), n_blocks * per_block), dtype)
        flat = values.reshape(-1)
        halves = samples.view(np.uint64)
        for start in range(0, len(samples) * n_blocks, _BLOCKS_AT_ONCE):
            stop = min(start + _BLOCKS_AT_ONCE, len(samples) * n_blocks)
            rows, blocks = np.divmod(np.arange(start, stop), n_blocks)
            counters = np.empty((_WORDS_PER_BLOCK, stop - start), np.uint64)
            counters[0] = blocks
            counters[1] = call
            sample = halves[rows]
            np.bitwise_and(sample, _LOW, out=counters[2])
            np.right_shift(sample, _HALF, out=counters[3])
            philox_4x32_10(counters, self._key)
            if is_double:
                counters[::2] <<= _HALF
                counters[::2] |= counters[1::2]
                counters = counters[::2]
            words = np.ascontiguousarray(counters.T).reshape(-1)
            flat[start * per_block : stop * per_block] = convert(words)
        if values.shape[1] == n_values:
            return values
        return np.ascontiguousarray(values[:, :n_values])
