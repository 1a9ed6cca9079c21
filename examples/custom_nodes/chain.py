"""The nodes from two archives to a loader, each of which you can replace."""

from collections.abc import Callable, Sequence

import torch
from torchdata.nodes import BaseNode, Mapper

import torchdata_insitu as tdi

from .archives import Archive
from .running_scale import Batch, RunningScale

BATCH_SIZE = 8


def make_loader(archives: Sequence[Archive]) -> tdi.InSituLoader:
    """Batches ``"x"`` (B, 2, 16, 24): a day and the one before; ``"y"`` (B, 16, 24): the next."""
    pool = tdi.ChunkPool("10%")
    names = [archive.name for archive in archives]
    sources = {
        archive.name: labelled(batches_of(archive, pool), number)
        for number, archive in enumerate(archives)
    }
    weights = {archive.name: archive.weight for archive in archives}
    mix = tdi.MixNode(sources, weights, seed=0, stop="all")
    return tdi.InSituLoader(tdi.Prefetcher(RunningScale(mix, names), 2))


def batches_of(archive: Archive, pool: tdi.ChunkPool) -> BaseNode[Batch]:
    """The chain of one archive, up to its gather; the pool holds the chunks of all."""
    store = tdi.open_store(archive.url)
    temperature = tdi.open_arrays(store)["temperature"]
    views = {"x": temperature.window(-1, 0), "y": temperature.shift(1)}
    planner = tdi.ChunkPlanner(views, batch_size=BATCH_SIZE, shuffle=True, seed=0, block_chunks=8)
    fetcher = tdi.AsyncChunkFetcher(planner, store, pool)
    return tdi.GatherNode(tdi.ChunkPoolNode(fetcher, pool))


def labelled(node: BaseNode[Batch], number: int) -> BaseNode[Batch]:
    """A node of torchdata's own: it keeps nothing, and so may stand inside a source of the mix."""
    return Mapper(node, label_with(number))


def label_with(number: int) -> Callable[[Batch], Batch]:
    """What says of a batch which archive it is from."""
    return lambda batch: {**batch, "archive": torch.full_like(batch["sample_index"], number)}
