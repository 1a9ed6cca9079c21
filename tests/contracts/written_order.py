"""Order version 1, written down a second time from its description, one draw after the other.

Plain Python down to the generator, so that neither NumPy nor the library can change it.
"""

import hashlib
import itertools
import json
import math

_MASK = (1 << 64) - 1


def philox_words(n, key):
    """Words of Philox4x64-10 (Salmon et al. 2011) from counter 1 on, as NumPy counts."""
    words = []
    for counter in itertools.count(1):
        if len(words) >= n:
            return words[:n]
        c, k = (counter, 0, 0, 0), (key & _MASK, key >> 64)
        for _ in range(10):
            one, two = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
            c = (
                (two >> 64) ^ c[1] ^ k[0],
                two & _MASK,
                (one >> 64) ^ c[3] ^ k[1],
                one & _MASK,
            )
            k = (k[0] + 0x9E3779B97F4A7C15) & _MASK, (k[1] + 0xBB67AE8584CAA73B) & _MASK
        words += c
    raise AssertionError


def permutation(n, *key):
    digest = hashlib.blake2b(json.dumps(key).encode(), digest_size=16).digest()
    words = philox_words(n, int.from_bytes(digest, "little"))
    return sorted(range(n), key=words.__getitem__)


def order(units, *, seed, epoch, lanes, block_chunks, run_chunks):
    """The draws of an epoch by position.

    Args:
        units: Per unit its draws, in the order of the store.
        seed, epoch, lanes, block_chunks, run_chunks: As in a plan that shuffles.
    """
    runs = list(itertools.batched(units, run_chunks))
    ordered = [unit for run in permutation(len(runs), seed, epoch, "runs") for unit in runs[run]]
    flat = [(number, draw) for number, unit in enumerate(ordered) for draw in unit]
    by_lane = []
    for lane in range(lanes):
        q, r = divmod(len(flat), lanes)
        first = lane * q + min(lane, r)
        mine = flat[first : first + q + (lane < r)]
        pieces = [
            [draw for _, draw in piece]
            for _, piece in itertools.groupby(mine, key=lambda item: item[0])
        ]
        key = (seed, epoch, "block", lane)
        first_size = max(1, math.ceil(block_chunks * (lane + 1) / (8 * lanes)))
        by_lane.append(_shuffled_blocks(pieces, first_size, block_chunks, key))
    return [by_lane[p % lanes][p // lanes] for p in range(len(flat))]


def _shuffled_blocks(pieces, size, block_chunks, key):
    drawn, block = [], 0
    while pieces:
        draws = [draw for piece in pieces[:size] for draw in piece]
        drawn += [draws[k] for k in permutation(len(draws), *key, block)]
        pieces, size, block = pieces[size:], min(2 * size, block_chunks), block + 1
    return drawn
