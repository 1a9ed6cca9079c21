"""Reading and decoding every key once, with no order, no batches and nothing kept."""

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.engines.engine import Engine, See, Task
from benchmarks.stored_keys import StoredArray, StoredKey, stored_keys
from torchdata_insitu.fetch.cpu_share import usable_cores


class BareDecode(Engine):
    """One thread per core, each taking the next key until there is none."""

    has_batches: ClassVar[bool] = False

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._keys = stored_keys(task.path)
        self._arrays = {key.of.name: key.of for key in self._keys}
        self._bytes_read = 0

    @abstractmethod
    def read(self, key: StoredKey) -> NDArray[np.uint8]:
        """The encoded bytes of a key."""

    @abstractmethod
    def decode(self, of: StoredArray, payload: NDArray[np.uint8]) -> NDArray[Any]:
        """The values of a stored chunk, for as long as the thread decodes no other."""

    def epoch(self, see: See | None = None) -> Iterator[int]:
        """See `Engine.epoch`.

        Raises:
            Exception: What a thread raised first.
        """
        left = deque(self._keys)
        errors: list[BaseException] = []
        n_bytes: list[int] = []

        def work() -> None:
            total = 0
            try:
                while left and not errors:
                    try:
                        key = left.popleft()
                    except IndexError:
                        break
                    payload = self.read(key)
                    total += payload.size
                    for corner, part in key.parts(payload):
                        values = self.decode(key.of, part)
                        if see is not None:
                            see(key.of.piece(corner, values))
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)
            n_bytes.append(total)

        threads = [threading.Thread(target=work) for _ in range(usable_cores())]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        self._bytes_read = sum(n_bytes)
        yield len(self.expected()[0])

    def expected(self) -> tuple[range, Sequence[int]]:
        """Every sample of the arrays, whatever a draw would read."""
        n_samples = next(iter(self._arrays.values())).array.shape[0]
        return range(n_samples), (0,)

    @property
    def reads(self) -> int:
        """One for each key."""
        return len(self._keys)

    @property
    def bytes_read(self) -> int:
        """Encoded bytes of the last epoch."""
        return self._bytes_read

    def forget(self) -> bool:
        """Nothing is kept."""
        return True

    def close(self) -> None:
        """Nothing runs between epochs."""
