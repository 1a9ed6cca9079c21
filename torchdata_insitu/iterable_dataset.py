"""A loader as a dataset, for engines that take nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from torchdata_insitu.errors import PlanError
from torchdata_insitu.loader import InSituLoader
from torchdata_insitu.nodes.ranks import Ranks

__all__ = ["LoaderDataset", "as_iterable_dataset"]

_SHARED_BY = ("loader", "caller")


class LoaderDataset(IterableDataset[dict[str, Tensor]]):
    """The batches of a loader as the items of a dataset; place and length are the loader's.

    Attributes:
        loader: the loader.
        sharded_by: who gives each process its share, see `as_iterable_dataset`.
    """

    def __init__(self, loader: InSituLoader, sharded_by: str | None) -> None:
        """Check what is known of the processes; nothing is started."""
        self.loader = loader
        self.sharded_by = sharded_by
        self._check_shares()

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """An iterator of the loader, which says what `iter` does.

        Raises:
            PlanError: in a worker process of a `DataLoader`, or nobody or two share out.
        """
        worker = get_worker_info()
        if worker is not None:
            msg = (
                f"the loader is asked for batches in worker {worker.id} of a DataLoader with "
                f"num_workers={worker.num_workers}: give num_workers=0. It reads and decodes on "
                "threads of its own; each worker would read and hand out the whole epoch again, "
                "and what it handed out would not be in the state of the loader here"
            )
            raise PlanError(msg)
        # Processes may have come to be since the dataset was made.
        self._check_shares()
        return iter(self.loader)

    def __len__(self) -> int:
        """Batches of the whole epoch on each rank."""
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be the given epoch, as `InSituLoader.set_epoch` does."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The place of the loader."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where a state was taken."""
        self.loader.load_state_dict(state)

    def _check_shares(self) -> None:
        rank, world_size = self.loader.chain.order.ranks
        n_processes = max(Ranks().find()[1], world_size)
        if self.sharded_by is None and n_processes > 1:
            msg = (
                f"sharded_by is None in one of {n_processes} processes: say who gives each its "
                f"share. sharded_by='loader': the loader does (it is rank {rank} of world_size "
                f"{world_size}), and the engine must leave its batches alone: do not hand the "
                "DataLoader to accelerator.prepare. sharded_by='caller': the engine splits or "
                "dispatches the batches of a loader that has them all, built with rank=0, "
                "world_size=1"
            )
            raise PlanError(msg)
        if self.sharded_by == "caller" and world_size > 1:
            msg = (
                f"sharded_by is 'caller', but the loader shards too: it is rank {rank} of "
                f"world_size {world_size}, and most samples would come to no process. Build it "
                "with rank=0, world_size=1, or say sharded_by='loader'"
            )
            raise PlanError(msg)


def as_iterable_dataset(loader: InSituLoader, sharded_by: str | None = None) -> LoaderDataset:
    """Wrap a loader for an engine that asks for a dataset.

    For `DataLoader(dataset, batch_size=None, num_workers=0)`, where the batches pass as they are.
    `StatefulDataLoader` with these arguments saves and loads the place of the loader with its own.

    Args:
        loader: whose batches the items are.
        sharded_by: under several processes, who gives each its share. `"loader"`: the loader, and
            the engine must leave its batches alone. `"caller"`: the engine, and the loader has to
            be built with `rank=0, world_size=1`. None: there is one process.

    Returns:
        A dataset with `__len__`, `set_epoch`, `state_dict` and `load_state_dict`.

    Raises:
        PlanError: several processes and None, `"caller"` over a loader that shards too, or
            another value. At `iter`, also in a worker process of a `DataLoader`.

    Example:
        >>> import torchdata_insitu as tdi
        >>> from torch.utils.data import DataLoader
        >>> from torchdata_insitu.testing import make_store
        >>> store = make_store({"t2m": (8, 2)}, chunks=(2, 2))
        >>> loader = tdi.build_loader(store, tdi.open_arrays(store), batch_size=4)
        >>> batches = DataLoader(tdi.as_iterable_dataset(loader), batch_size=None)
        >>> [tuple(batch["t2m"].shape) for batch in batches]
        [(4, 2), (4, 2)]
        >>> loader.close()
    """
    if not isinstance(loader, InSituLoader):
        msg = f"as_iterable_dataset wraps an InSituLoader, not {loader!r}"
        raise PlanError(msg)
    if sharded_by is not None and sharded_by not in _SHARED_BY:
        msg = f"sharded_by is {sharded_by!r}: choose one of {', '.join(map(repr, _SHARED_BY))}"
        raise PlanError(msg)
    return LoaderDataset(loader, sharded_by)
