"""What a loader will do, in text, before it reads anything."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.view import View
from torchdata_insitu.loader import InSituLoader
from torchdata_insitu.nodes.branch import Branch
from torchdata_insitu.nodes.chunk_planner import ChunkPlanner
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.draw_space import DrawSpace
from torchdata_insitu.planning.mix_cursor import MixCursor
from torchdata_insitu.planning.plan import Plan
from torchdata_insitu.pool.memory_budget import text_of_bytes

__all__ = ["describe"]


def describe(loader: InSituLoader) -> str:
    """Batches, order, reads and memory of the pass that comes next; nothing is read.

    Over a `MixNode`, for each of its sources.

    Args:
        loader: what to describe.

    Returns:
        Lines of text, each with a heading.

    Example:
        >>> import torchdata_insitu as tdi
        >>> from torchdata_insitu.testing import make_store
        >>> store = make_store({"t2m": (12, 2, 3)}, chunks=(4, 2, 3))
        >>> loader = tdi.build_loader(
        ...     store, tdi.open_arrays(store), batch_size=4, budget_bytes=10**6
        ... )
        >>> print(tdi.describe(loader))
        batches  3 of 4 draws on each of 1 ranks (this is rank 0); epoch 0, from position 0
        draws    12 in 3 units; none left out by tail 'short'
        order    shuffled with seed 0: blocks of 16 units, runs of 1, 1 lanes
        views    t2m: float32 (4, 2, 3) from t2m
        arrays   t2m: float32 (12, 2, 3), sample axis 0: 3 chunks of 4 samples (96 B) in 1 stored...
        reads    3 stored chunks this pass (t2m 3), 1.00 x the chunks it draws from
        memory   budget 1 MB; floor 288 B (t2m 3 x 96 B); a batch is 128 B, outside the budget
    """
    chain, start = loader.chain, loader.cursor
    if isinstance(start, MixCursor):
        lines = _mix_lines(loader, start)
    else:
        lines = [
            ("batches", f"{len(loader)} {_batches_text(chain.branches[''], start)}"),
            *_branch_lines(chain.branches[""], start, chain.planner.reads_from(start)),
        ]
    return "\n".join(f"{heading:<8} {text}" for heading, text in lines)


def _mix_lines(loader: InSituLoader, start: MixCursor) -> list[tuple[str, str]]:
    order = loader.chain.mix_order
    rank, world_size = order.ranks
    weights = zip(order.choices.names, order.choices.weights, strict=True)
    shares = ", ".join(f"{name} {weight:g}" for name, weight in weights)
    reads = order.reads_from(start)
    batches = (
        f"{len(loader)} on each of {world_size} ranks (this is rank {rank}); epoch "
        f"{start.epoch}, from step {start.step}, position {start.position}"
    )
    lines = [
        ("batches", batches),
        ("mix", f"by weight: {shares}; seed {order.choices.seed}, stop {order.stop!r}"),
        ("reads", f"{sum(reads.values())} stored chunks this pass, of all sources"),
    ]
    for (name, branch), cursor in zip(loader.chain.branches.items(), start.cursors, strict=True):
        n_batches = branch.planner.steps_from(cursor)
        mine = {array.name: reads[f"{name}/{array.name}"] for array in branch.planner.arrays}
        lines.append(("source", f"{name}: {n_batches} batches {_batches_text(branch, cursor)}"))
        lines += [(f"  {heading}", text) for heading, text in _branch_lines(branch, cursor, mine)]
    return lines


def _branch_lines(branch: Branch, start: Cursor, reads: Mapping[str, int]) -> list[tuple[str, str]]:
    planner = branch.planner
    return [
        ("draws", _draws_text(planner, start)),
        ("order", _order_text(planner.plan, start)),
        *(
            ("views", _view_text(name, view, planner.plan.batch_size))
            for name, view in planner.views.items()
        ),
        *(("arrays", _array_text(branch, array)) for array in planner.arrays),
        ("reads", _reads_text(planner, start, reads)),
        ("memory", _memory_text(branch, start)),
    ]


def _batches_text(branch: Branch, start: Cursor) -> str:
    rank, world_size = branch.planner.ranks
    return (
        f"of {branch.planner.plan.batch_size} draws on each of {world_size} ranks (this is "
        f"rank {rank}); epoch {start.epoch}, from position {start.position}"
    )


def _draws_text(planner: ChunkPlanner, start: Cursor) -> str:
    plan = planner.plan
    left_out = plan.left_out(start.position, planner.ranks[1])
    text = (
        f"{plan.n_draws} in {plan.space.n_units} units; {left_out or 'none'} left out by tail "
        f"{plan.tail!r}"
    )
    n_dropped = planner.space.n_dropped_edges
    if n_dropped:
        text += f"; {n_dropped} anchors dropped at edges that windows reach over"
    return text


def _order_text(plan: Plan, start: Cursor) -> str:
    kind = f"shuffled with seed {plan.seed}" if plan.shuffle else "store order, unshuffled"
    return (
        f"{kind}: blocks of {plan.block_chunks} units, runs of {plan.run_chunks}, "
        f"{start.lanes} lanes"
    )


def _view_text(name: str, view: View, batch_size: int) -> str:
    arrays = ", ".join(array.name for array in view.arrays)
    stacked = f"a stack of {arrays}" if view.stacked else arrays
    offsets = ", ".join(f"{offset:+d}" for offset in view.offsets)
    at = f" at {offsets}" if view.offsets != (0,) else ""
    return f"{name}: {view.dtype} {(batch_size, *view.sample_shape)} from {stacked}{at}"


def _array_text(branch: Branch, array: ArrayGeometry) -> str:
    axis = f"sample axis {array.sample_axis}"
    if array.sample_axis_name:
        axis += f" {array.sample_axis_name!r}"
    return (
        f"{array.name}: {array.dtype} {array.shape}, {axis}: {array.n_chunks} chunks of "
        f"{array.rows_per_chunk} samples ({text_of_bytes(array.chunk_bytes)}) in "
        f"{array.stored_per_chunk} stored; {branch.fetcher.describe(array)}"
    )


def _reads_text(planner: ChunkPlanner, start: Cursor, reads: Mapping[str, int]) -> str:
    parts = ", ".join(f"{name} {count}" for name, count in reads.items())
    text = f"{sum(reads.values())} stored chunks this pass ({parts})"
    # Of a mix, a source can be left before it drew from all of its chunks.
    is_whole = reads == planner.reads_from(start)
    if start.position == 0 and planner.ranks[1] == 1 and is_whole:
        n_distinct = _n_distinct(planner.plan.space)
        text += f", {sum(reads.values()) / n_distinct:.2f} x the chunks it draws from"
    return text


def _n_distinct(space: DrawSpace) -> int:
    chunks = space.chunks(np.arange(space.n_units))
    return sum(space.stored_per_chunk[number] for number in chunks[:, 0].tolist())


def _memory_text(branch: Branch, start: Cursor) -> str:
    plan, planner = branch.planner.plan, branch.planner
    floor = plan.floor_chunks(*planner.ranks, start.lanes)
    terms = list(zip(planner.arrays, floor, strict=True))
    total = sum(array.chunk_bytes * count for array, count in terms)
    parts = " + ".join(f"{a.name} {n} x {text_of_bytes(a.chunk_bytes)}" for a, n in terms)
    pool = branch.pool_node.pool
    budget = text_of_bytes(pool.budget_bytes) if pool.budget_bytes else "as needed"
    batch = text_of_bytes(plan.batch_size * branch.gather.draw_bytes)
    return (
        f"budget {budget}; floor {text_of_bytes(total)} ({parts}); a batch is {batch}, outside the "
        "budget"
    )
