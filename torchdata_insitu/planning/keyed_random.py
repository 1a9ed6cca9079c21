"""Randomness that is a function of a key, with nothing in between two calls.

The key, for example `(seed, epoch, "runs")`, is written as JSON and hashed with BLAKE2b to the
128-bit key of a Philox generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
2011). Only raw 64-bit words are used: NumPy promises that the stream of a bit generator never
changes, but not that of `Generator.permutation` (NEP 19). Keys are hashed, never added: seed 0 in
epoch 1 has nothing in common with seed 1 in epoch 0.
"""

import hashlib
import json

import numpy as np
from numpy.typing import NDArray

# Each count of a Philox counter gives four words.
_WORDS_PER_COUNT = 4


def keyed_words(n: int, *key: int | str) -> NDArray[np.uint64]:
    """Draw the first `n` words of the stream that belongs to a key.

    Args:
        n: Number of words.
        key: What the stream is for. Text and whole numbers, so that its JSON is one and the same on
            every machine.

    Returns:
        `(n,)` uint64, uniform over all 64-bit words.

    Example:
        >>> keyed_words(2, 7, 0, "runs")
        array([15682018172295770504, 15501476865476760002], dtype=uint64)
    """
    return keyed_words_at(0, n, *key)


def keyed_words_at(start: int, stop: int, *key: int | str) -> NDArray[np.uint64]:
    """Draw the words `start ... stop - 1` of the stream that belongs to a key.

    Philox numbers its words: what stands before `start` costs nothing.

    Args:
        start: Number of the first word.
        stop: Number after the last word.
        key: As in `keyed_words`.

    Returns:
        `(stop - start,)` uint64.

    Example:
        >>> bool((keyed_words_at(5, 9, 7, 0, "runs") == keyed_words(9, 7, 0, "runs")[5:]).all())
        True
    """
    digest = hashlib.blake2b(json.dumps(key).encode(), digest_size=16).digest()
    counter, skipped = divmod(start, _WORDS_PER_COUNT)
    philox = np.random.Philox(key=int.from_bytes(digest, "little"), counter=counter)
    words: NDArray[np.uint64] = philox.random_raw(skipped + stop - start)
    return words[skipped:]


def keyed_permutation(n: int, *key: int | str) -> NDArray[np.int64]:
    """Permute `0 ... n - 1` by a key: the stable argsort of its first `n` words.

    Args:
        n: Number of things to permute.
        key: As in `keyed_words`.

    Returns:
        `(n,)` int64.

    Example:
        >>> keyed_permutation(5, 8, 0, "runs")
        array([3, 1, 4, 2, 0])
    """
    order = np.argsort(keyed_words(n, *key), kind="stable")
    return order.astype(np.int64, copy=False)
