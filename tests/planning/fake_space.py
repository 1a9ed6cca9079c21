"""A draw space that has only lengths: draws are (unit, index), chunks are named after units."""

import numpy as np

from torchdata_insitu.planning.run_lengths import RunLengths


class FakeSpace:
    """Unit `u` reads the chunks `u ... u + reach` of "own" and the chunk `u // 3` of "coarse"."""

    kind = "fake"
    n_columns = 2
    array_names = ("own", "coarse")
    stored_per_chunk = (2, 5)
    shard_units = 1

    def __init__(self, lengths, reach=0):
        self.lengths = [int(n) for n in lengths]
        self.reach = reach
        self.n_units = len(self.lengths)
        self.has_offsets = reach > 0

    def unit_lengths(self):
        return RunLengths.encode(self.lengths)

    def draws(self, unit, start, stop):
        assert 0 <= start < stop <= self.lengths[unit]
        return np.array([(unit, index) for index in range(start, stop)], dtype=np.int64)

    def chunks_of_unit(self, unit):
        own = [(0, unit + k, 0) for k in range(self.reach + 1)]
        return [*own, (1, unit // 3, (unit // 3) % 2)]

    def unit_chunks(self, units):
        rows = [
            (n, *row) for n, unit in enumerate(units.tolist()) for row in self.chunks_of_unit(unit)
        ]
        table = np.array(rows, dtype=np.int64).reshape(-1, 4)
        return table[:, 0], table[:, 1:]

    def chunks(self, units):
        rows = dict.fromkeys(map(tuple, self.unit_chunks(units)[1].tolist()))
        return np.array(list(rows), dtype=np.int64).reshape(-1, 3)

    def chunks_of_draws(self, draws):
        return self.chunks(draws[:, 0])

    def chunks_bound(self, n_units):
        n_units = min(n_units, self.n_units)
        return n_units + self.reach, min((n_units - 1 + 2) // 3 + 1, -(-self.n_units // 3))

    def digest(self):
        return {"arrays": "0" * 16, "offsets": "1" * 16}
