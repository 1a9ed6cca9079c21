"""Batches copied out of memory, in the order in which they lie there."""

from collections.abc import Iterator

import numpy as np

from benchmarks.engines.engine import Engine, See, Task, see_batch
from benchmarks.oracle import stored_values

# Those that a prefetcher keeps, the one it makes, and the one that the consumer has.
_N_BUFFERS = 4


class Memcpy(Engine):
    """`np.copyto` of the bytes of all batches, into buffers that are used again."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._stored = stored_values(task.path)
        batch_shape = (len(task.offsets), task.batch_size)
        self._buffers = [
            {
                # Ones, so that the memory is touched.
                name: np.ones((*batch_shape, *values.shape[1:]), values.dtype)
                for name, values in self._stored.items()
            }
            for _ in range(_N_BUFFERS)
        ]

    def epoch(self, see: See | None = None) -> Iterator[int]:
        """See `Engine.epoch`."""
        anchors, offsets = self.task.anchors(), self.task.offsets
        for number, start in enumerate(range(anchors.start, anchors.stop, self.task.batch_size)):
            n_rows = min(self.task.batch_size, anchors.stop - start)
            batch = self._buffers[number % _N_BUFFERS]
            for name, values in self._stored.items():
                for position, offset in enumerate(offsets):
                    rows = values[start + offset : start + offset + n_rows]
                    np.copyto(batch[name][position, :n_rows], rows)
            if see is not None:
                shown = {name: values[:, :n_rows].swapaxes(0, 1) for name, values in batch.items()}
                if len(offsets) == 1:
                    shown = {name: values[:, 0] for name, values in shown.items()}
                see_batch(see, shown, np.arange(start, start + n_rows), offsets)
            yield n_rows

    def close(self) -> None:
        """Nothing runs."""
