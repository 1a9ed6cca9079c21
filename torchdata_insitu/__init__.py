"""Train in place on chunked N-d arrays with PyTorch.

An existing Zarr archive becomes a shuffled, split-aware, rank-aware, exactly resumable stream of
PyTorch batches, as a chain of `torchdata.nodes`.
"""

from typing import TYPE_CHECKING, Any

from torchdata_insitu import errors
from torchdata_insitu.describe import describe
from torchdata_insitu.fetch.retry import RetryPolicy
from torchdata_insitu.fetch.stores import open_store
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.view import View, stack
from torchdata_insitu.geometry.view_spec import ViewSpec
from torchdata_insitu.iterable_dataset import as_iterable_dataset
from torchdata_insitu.loader import InSituLoader
from torchdata_insitu.loader_stats import LoaderStats
from torchdata_insitu.mask_invalid import mask_invalid
from torchdata_insitu.nodes.async_chunk_fetcher import AsyncChunkFetcher
from torchdata_insitu.nodes.chunk_planner import ChunkPlanner
from torchdata_insitu.nodes.chunk_pool_node import ChunkPoolNode
from torchdata_insitu.nodes.gather_node import GatherNode
from torchdata_insitu.nodes.mix_node import MixNode
from torchdata_insitu.nodes.pin_memory import PinMemory
from torchdata_insitu.nodes.prefetcher import Prefetcher
from torchdata_insitu.nodes.sample_random import SampleRandom
from torchdata_insitu.nodes.segment_node import SegmentNode
from torchdata_insitu.open_arrays import open_arrays
from torchdata_insitu.pipeline import build_loader
from torchdata_insitu.planning.plan import Plan
from torchdata_insitu.planning.shuffle_quality import ShuffleQuality, shuffle_quality
from torchdata_insitu.planning.split import Split, Splits
from torchdata_insitu.planning.splits import split_by_chunk, split_by_range
from torchdata_insitu.pool.chunk_pool import ChunkPool
from torchdata_insitu.rank_check import check_ranks
from torchdata_insitu.state_description import describe_state

if TYPE_CHECKING:
    # Under their own names, by which a type checker knows them for public.
    from torchdata_insitu.lightning_.on_lightning import InSituDataModule as InSituDataModule
    from torchdata_insitu.lightning_.on_lightning import InSituResume as InSituResume

__version__ = "0.1.0.dev0"

__all__ = [
    "ArrayGeometry",
    "AsyncChunkFetcher",
    "ChunkPlanner",
    "ChunkPool",
    "ChunkPoolNode",
    "GatherNode",
    "InSituLoader",
    "LoaderStats",
    "MixNode",
    "PinMemory",
    "Plan",
    "Prefetcher",
    "RetryPolicy",
    "SampleRandom",
    "SegmentNode",
    "ShuffleQuality",
    "Split",
    "Splits",
    "View",
    "ViewSpec",
    "as_iterable_dataset",
    "build_loader",
    "check_ranks",
    "describe",
    "describe_state",
    "errors",
    "mask_invalid",
    "open_arrays",
    "open_store",
    "shuffle_quality",
    "split_by_chunk",
    "split_by_range",
    "stack",
]

# Not in `__all__`, since `import *` would then need Lightning.
_OF_LIGHTNING = ("InSituDataModule", "InSituResume")


def __getattr__(name: str) -> Any:
    if name not in _OF_LIGHTNING:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from torchdata_insitu.lightning_ import for_base

    return getattr(for_base(), name)


def __dir__() -> list[str]:
    return [*globals(), *_OF_LIGHTNING]
