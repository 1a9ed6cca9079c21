"""The chain in one call, from a store or a URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torchdata.nodes import BaseNode

from torchdata_insitu.errors import PlanError
from torchdata_insitu.fetch.retry import RetryPolicy
from torchdata_insitu.fetch.store_like import StoreLike
from torchdata_insitu.fetch.stores import open_own_store
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.view import View
from torchdata_insitu.loader import InSituLoader
from torchdata_insitu.nodes.async_chunk_fetcher import AsyncChunkFetcher
from torchdata_insitu.nodes.chunk_planner import ChunkPlanner
from torchdata_insitu.nodes.chunk_pool_node import ChunkPoolNode
from torchdata_insitu.nodes.gather_node import GatherNode
from torchdata_insitu.nodes.pin_memory import PinMemory
from torchdata_insitu.nodes.prefetcher import Prefetcher
from torchdata_insitu.planning.splits import Split
from torchdata_insitu.planning.whole_number import whole_number
from torchdata_insitu.pool.chunk_pool import ChunkPool

__all__ = ["build_loader"]


def build_loader(
    store: StoreLike | Mapping[str, StoreLike],
    views: Mapping[str, View | ArrayGeometry],
    *,
    batch_size: int,
    split: Split | None = None,
    shuffle: bool = True,
    seed: int = 0,
    block_chunks: int = 16,
    run_chunks: int | None = None,
    tail: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    mesh: DeviceMesh | None = None,
    lanes: int | None = None,
    pool: ChunkPool | None = None,
    budget_bytes: int | str = "auto",
    max_inflight: int = 32,
    decode_threads: int | None = None,
    retry: RetryPolicy | None = None,
    on_missing: str = "auto",
    batch_transforms: Sequence[Callable[..., dict[str, Tensor]]] = (),
    prefetch_factor: int = 2,
    pin_memory: bool | str = "auto",
    strict: bool = True,
    on_growth: str = "refuse",
    sample_index: str | None = "sample_index",
    name: str | None = None,
) -> InSituLoader:
    """Stream batches from a Zarr store: shuffled, split-aware, rank-aware, exactly resumable.

    The same chain by hand: `ChunkPlanner`, `AsyncChunkFetcher`, `ChunkPoolNode`,
    `GatherNode`, `Prefetcher`, `PinMemory`, `InSituLoader`.

    Args:
        store: a Zarr store or what `open_store` takes; a mapping of these for several stores, by
            the labels given to `open_arrays(..., store=label)`.
        views: what a batch holds, by name.
        batch_size: draws in a batch of one rank.
        split: the samples to draw from; None for all.
        shuffle: permute runs of chunks, and the draws inside each block.
        seed: keys every permutation.
        block_chunks: units whose draws are shuffled among themselves.
        run_chunks: consecutive units permuted as one.
        tail: `"short"`, `"drop"`, `"pad"` or `"exact"`, see `ChunkPlanner`.
        rank: data-parallel rank; None to look it up, see `ChunkPlanner`.
        world_size: number of data-parallel ranks; None to look it up.
        mesh: the data-parallel dimension of a device mesh, such as `mesh["dp"]`, instead of both.
        lanes: equal shares of an epoch that are read side by side.
        pool: a pool to share with other loaders; None for one of its own.
        budget_bytes: budget of its own pool.
        max_inflight: requests under way at once, for each store and over all passes of the
            process that read it. Passes that are live at the same time need equal values.
        decode_threads: threads that decode; None for one per usable core.
        retry: which failed reads are tried again; None for `RetryPolicy()`.
        on_missing: what a stored chunk means that is not in the store. `"auto"`: the fill value,
            unless no chunk of the array is there at all; `"fill"`: the fill value, in any case;
            `"raise"`: an error, and arrays are refused whose shards Zarr decodes as a whole, for
            it fills what is missing inside. What is filled otherwise is counted in
            `InSituLoader.stats`.
        batch_transforms: functions `f(batch) -> batch` or `f(batch, rng) -> batch`, where `rng` is
            a `SampleRandom`.
        prefetch_factor: batches made ahead; 0 for none.
        pin_memory: page-lock batches; `"auto"` where there is an accelerator.
        strict: refuse a state of another plan.
        on_growth: `"refuse"` a state from before samples were appended to what is drawn, or
            `"finish_epoch"` over the draws that it began with; see `InSituLoader`.
        sample_index: the name under which the anchors come; None leaves them out.
        name: what messages call the passes of this loader; None for the name of the split.

    Returns:
        The loader; nothing was read yet.

    Raises:
        GeometryError: views that cannot be drawn together.
        PlanError: nothing to draw, both `pool` and `budget_bytes` are given, or an option of the
            wrong kind.
        BudgetError: at the first batch, if one block of chunks does not fit the budget.

    Example:
        >>> import torchdata_insitu as tdi
        >>> from torchdata_insitu.testing import make_store
        >>> store = make_store({"t2m": (12, 2, 3)}, chunks=(4, 2, 3))
        >>> t2m = tdi.open_arrays(store)["t2m"]
        >>> views = {"x": t2m.window(-1, 0), "y": t2m.shift(1)}
        >>> with tdi.build_loader(store, views, batch_size=5, budget_bytes="10%") as loader:
        ...     [tuple(batch["x"].shape) for batch in loader]
        [(5, 2, 2, 3), (5, 2, 2, 3)]
    """
    if pool is not None and not isinstance(pool, ChunkPool):
        msg = (
            f"pool is {pool!r} of type {type(pool).__name__}: give a ChunkPool to share with other "
            "loaders, or how much to hold as budget_bytes"
        )
        raise PlanError(msg)
    if pool is not None and budget_bytes != "auto":
        msg = f"both pool ({pool!r}) and budget_bytes ({budget_bytes!r}) are given: choose one"
        raise PlanError(msg)
    if not isinstance(pin_memory, bool) and pin_memory != "auto":
        msg = f"pin_memory is {pin_memory!r}: choose True, False or 'auto'"
        raise PlanError(msg)
    n_ahead = whole_number("prefetch_factor", prefetch_factor, least=0)
    stores = (
        {label: open_own_store(item) for label, item in store.items()}
        if isinstance(store, Mapping)
        else open_own_store(store)
    )
    planner = ChunkPlanner(
        views,
        batch_size=batch_size,
        split=split,
        shuffle=shuffle,
        seed=seed,
        block_chunks=block_chunks,
        run_chunks=run_chunks,
        tail=tail,
        lanes=lanes,
        rank=rank,
        world_size=world_size,
        mesh=mesh,
    )
    is_own = pool is None
    pool = ChunkPool(budget_bytes) if pool is None else pool
    fetcher = AsyncChunkFetcher(
        planner,
        stores,
        pool,
        max_inflight=max_inflight,
        decode_threads=decode_threads,
        retry=retry,
        on_missing=on_missing,
        name=name or (split.name if split is not None else "loader"),
    )
    pins = torch.accelerator.is_available() if pin_memory == "auto" else bool(pin_memory)
    node: BaseNode[Any] = GatherNode(
        ChunkPoolNode(fetcher, pool),
        batch_transforms=batch_transforms,
        sample_index=sample_index,
        pin_memory=pins,
    )
    if n_ahead:
        node = Prefetcher(node, n_ahead)
    if pins:
        node = PinMemory(node)
    own_pool = pool if is_own else None
    return InSituLoader(node, strict=strict, on_growth=on_growth, own_pool=own_pool)
