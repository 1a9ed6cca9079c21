"""The order of an epoch written down a second time, position by position, in plain Python."""

import hashlib
import json
import math

import numpy as np


def permuted(n, *key):
    """Numbers `0 ... n - 1` sorted by the words of a Philox stream."""
    name = hashlib.blake2b(json.dumps(list(key)).encode(), digest_size=16).digest()
    words = np.random.Philox(key=int.from_bytes(name, "little")).random_raw(n).tolist()
    return sorted(range(n), key=lambda number: words[number])


class OracleOrder:
    """Every draw of an epoch as (unit, index), with the block it lies in."""

    def __init__(self, lengths, *, seed, epoch, shuffle, run_chunks, block_chunks, lanes):
        self.n_draws, self.lanes = sum(lengths), lanes
        runs = [
            list(range(first, min(first + run_chunks, len(lengths))))
            for first in range(0, len(lengths), run_chunks)
        ]
        numbers = permuted(len(runs), seed, epoch, "runs") if shuffle else range(len(runs))
        laid_out = [
            (unit, k) for run in numbers for unit in runs[run] for k in range(lengths[unit])
        ]
        self.blocks = []  # by lane: the units of each block
        self.lane_draws = []  # by lane: (draw, block)
        first = 0
        for lane in range(lanes):
            n = self.n_draws // lanes + (lane < self.n_draws % lanes)
            mine, first = laid_out[first : first + n], first + n
            pieces = []
            for unit, k in mine:
                if not pieces or pieces[-1][0][0] != unit:
                    pieces.append([])
                pieces[-1].append((unit, k))
            size = max(1, math.ceil(block_chunks * (lane + 1) / (8 * lanes)))
            blocks, out = [], []
            while pieces:
                block, pieces = pieces[:size], pieces[size:]
                size = min(2 * size, block_chunks)
                draws = [draw for piece in block for draw in piece]
                if shuffle:
                    order = permuted(len(draws), seed, epoch, "block", lane, len(blocks))
                    draws = [draws[k] for k in order]
                out += [(draw, len(blocks)) for draw in draws]
                blocks.append([piece[0][0] for piece in block])
            self.blocks.append(blocks)
            self.lane_draws.append(out)

    def draw(self, position):
        return self.lane_draws[position % self.lanes][position // self.lanes][0]

    def block(self, position):
        return self.lane_draws[position % self.lanes][position // self.lanes][1]

    def draws(self):
        return [self.draw(position) for position in range(self.n_draws)]


def steps_left(n, p, batch, world, tail):
    full, rest = divmod(n - p, batch * world)
    if tail == "drop" or rest == 0:
        return full
    if tail == "pad" or rest >= world:
        return full + 1
    return full + (1 if tail == "exact" else 0)


def batches(n, p, *, batch, world, rank, tail):
    """Batches of a rank as lists of (position, valid), and the global position after each."""
    out = []
    for step in range(steps_left(n, p, batch, world, tail)):
        start = p + step * batch * world
        mine = [q for q in range(start, min(n, start + batch * world)) if q % world == rank]
        own = [q for q in range(n) if q % world == rank]
        copy = own[-1] if own else n - 1
        rows = [(q, True) for q in mine]
        if tail == "pad":
            rows += [(copy, False)] * (batch - len(mine))
        elif not mine:
            rows = [(copy, False)]
        out.append(rows)
    after = [p + (step + 1) * batch * world for step in range(len(out))]
    if after:
        after[-1] = n
    return out, after


def open_chunks(space, order, p, *, rank, world, stop):
    """Chunks that are open at each place of a rank's stream from position `p`, one set a place."""
    stream = [q for q in range(p, stop) if q % world == rank]
    opened = []
    for place in range(len(stream)):
        chunks = set()
        for lane in {q % order.lanes for q in stream}:
            turns = [q for q in stream if q % order.lanes == lane]
            ahead = [q for q in turns if q >= stream[place]]
            block = order.block(ahead[0] if ahead else turns[-1])
            whole = [
                lane + order.lanes * index
                for index, (_, number) in enumerate(order.lane_draws[lane])
                if number == block
            ]
            units = order.blocks[lane][block]
            if whole[0] < p:
                units = [order.draw(q)[0] for q in turns if order.block(q) == block]
            for unit in units:
                chunks.update(space.chunks_of_unit(unit))
        opened.append(chunks)
    return stream, opened
