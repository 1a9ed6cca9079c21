"""What a loader will do, in text, before it reads anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from torchdata_insitu.chain import Chain
from torchdata_insitu.errors import PlanError
from torchdata_insitu.fetch.stores import store_text
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.view import View
from torchdata_insitu.loader import InSituLoader
from torchdata_insitu.nodes.branch import Branch
from torchdata_insitu.nodes.chunk_planner import ChunkPlanner
from torchdata_insitu.nodes.graph import walk
from torchdata_insitu.nodes.prefetcher import Prefetcher
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.mix_cursor import MixCursor
from torchdata_insitu.planning.plan import Plan
from torchdata_insitu.pool.memory_budget import text_of_bytes

__all__ = ["describe"]


def describe(loader: InSituLoader) -> str:
    """Batches, order, reads and memory of the pass that comes next; nothing is read.

    Over a `MixNode`, for each of its sources. Reads are exact for a pool that starts empty and has
    no more room than the floor. With more, chunks can be found in memory, and some are read again
    if another pass that starts on the same pool takes back what was read ahead.

    Args:
        loader: what to describe.

    Returns:
        Lines of text, each with a heading.

    Raises:
        PlanError: it is no loader.

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
        store    memory://...; at most 32 requests at once; on_missing 'auto'
        arrays   t2m: float32 (12, 2, 3), sample axis 0: 3 chunks of 4 samples (96 B) in 1 stored...
        reads    at most 3 stored chunks this pass (t2m 3), 1.00 x the chunks it draws from
        memory   budget 1 MB; floor 288 B (t2m 3 x 96 B); beside it up to 4 x 16 batches of 128 B
        later    the budget holds all 3 chunks (288 B): later epochs read nothing
    """
    if not isinstance(loader, InSituLoader):
        msg = (
            f"describe takes an InSituLoader, such as build_loader returns, and not {loader!r} of "
            f"type {type(loader).__name__}"
        )
        raise PlanError(msg)
    chain, start = loader.chain, loader.cursor
    if isinstance(start, MixCursor):
        lines = _mix_lines(loader, start)
    else:
        branch = chain.branches[""]
        reads = chain.planner.reads_from(start)
        lines = [
            ("batches", f"{len(loader)} {_batches_text(branch, start)}"),
            *_branch_lines(branch, start, reads, _room_of(chain, branch, start)),
        ]
    return "\n".join(f"{heading:<8} {text}" for heading, text in lines)


class _Room(NamedTuple):
    """What a chain wants of the pool of one of its branches.

    Attributes:
        budget_bytes: the budget once the passes of the chain are live.
        floor_bytes: the floors of the branches on the pool.
        chunks_bytes: all chunks that they draw from.
        is_own: whether no other loader uses the pool.
        n_batches: batches of the branch that exist at once; of small ones, stretches of them.
    """

    budget_bytes: int
    floor_bytes: int
    chunks_bytes: int
    is_own: bool
    n_batches: int


def _room_of(chain: Chain, branch: Branch, start: Cursor | MixCursor) -> _Room:
    pool = branch.pool_node.pool
    cursors = start.cursors if isinstance(start, MixCursor) else (start,)
    on_pool = [
        (other.planner, cursor)
        for other, cursor in zip(chain.branches.values(), cursors, strict=True)
        if other.pool_node.pool is pool
    ]
    floor = sum(planner.floor_bytes(cursor.lanes, cursor.n_draws) for planner, cursor in on_pool)
    sources = {id(node) for other in chain.branches.values() for node in walk(other.root)}
    own = {id(node) for node in walk(branch.root)}
    depths = [
        node.prefetch_factor
        for node in walk(chain.root)
        if isinstance(node, Prefetcher) and (id(node) in own or id(node) not in sources)
    ]
    return _Room(
        pool.budget.grown_for(floor),
        floor,
        sum(_n_bytes(planner) for planner, _ in on_pool),
        pool is chain.own_pool,
        # Those that are kept, one that is made for each thread, and the one that is held.
        sum(depths) + max(len(depths), 1) + 1,
    )


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
    rooms = {
        name: _room_of(loader.chain, branch, start)
        for name, branch in loader.chain.branches.items()
    }
    at_most = any(_at_most(branch, rooms[name]) for name, branch in loader.chain.branches.items())
    n_reads = f"{'at most ' if at_most else ''}{sum(reads.values())}"
    lines = [
        ("batches", batches),
        ("mix", f"by weight: {shares}; seed {order.choices.seed}, stop {order.stop!r}"),
        ("reads", f"{n_reads} stored chunks this pass, of all sources"),
        (
            "memory",
            f"floors of all sources {text_of_bytes(loader.floor_bytes)}: what one pool needs",
        ),
    ]
    for (name, branch), cursor in zip(loader.chain.branches.items(), start.cursors, strict=True):
        n_batches = branch.planner.steps_from(cursor)
        mine = {array: reads[f"{name}/{array}"] for array in branch.planner.space.array_names}
        lines.append(("source", f"{name}: {n_batches} batches {_batches_text(branch, cursor)}"))
        lines += [
            (f"  {heading}", text)
            for heading, text in _branch_lines(branch, cursor, mine, rooms[name])
        ]
    return lines


def _branch_lines(
    branch: Branch, start: Cursor, reads: Mapping[str, int], room: _Room
) -> list[tuple[str, str]]:
    planner = branch.planner
    names = dict(zip(planner.arrays, planner.space.array_names, strict=True))
    views = planner.views.items()
    return [
        ("draws", _draws_text(planner, start)),
        ("order", _order_text(planner.plan, start)),
        *(
            ("views", _view_text(name, view, names, planner.plan.batch_size))
            for name, view in views
        ),
        *(("store", text) for text in _store_texts(branch)),
        *(("arrays", _array_text(branch, array, name)) for array, name in names.items()),
        ("reads", _reads_text(branch, start, reads, room)),
        ("memory", _memory_text(branch, start, room)),
        ("later", _later_text(planner, start, reads, room)),
    ]


def _batches_text(branch: Branch, start: Cursor) -> str:
    rank, world_size = branch.planner.ranks
    return (
        f"of {branch.planner.plan.batch_size} draws on each of {world_size} ranks (this is "
        f"rank {rank}); epoch {start.epoch}, from position {start.position}"
    )


def _draws_text(planner: ChunkPlanner, start: Cursor) -> str:
    plan = planner.plan_of(start)
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


def _view_text(name: str, view: View, names: Mapping[ArrayGeometry, str], batch_size: int) -> str:
    arrays = ", ".join(names[array] for array in view.arrays)
    stacked = f"a stack of {arrays}" if view.stacked else arrays
    offsets = ", ".join(f"{offset:+d}" for offset in view.offsets)
    at = f" at {offsets}" if view.offsets != (0,) else ""
    return f"{name}: {view.dtype} {(batch_size, *view.sample_shape)} from {stacked}{at}"


def _store_texts(branch: Branch) -> list[str]:
    fetcher = branch.fetcher
    how = f"at most {fetcher.max_inflight} requests at once; on_missing {fetcher.on_missing!r}"
    if not isinstance(fetcher.store, Mapping):
        return [f"{store_text(fetcher.store)}; {how}"]
    return [f"{label}: {store_text(store)}; {how}" for label, store in fetcher.store.items()]


def _array_text(branch: Branch, array: ArrayGeometry, name: str) -> str:
    axis = f"sample axis {array.sample_axis}"
    if array.sample_axis_name:
        axis += f" {array.sample_axis_name!r}"
    most = "up to " if array.sample_chunks.step is None else ""
    return (
        f"{name}: {array.decoding} {array.shape}, {axis}: {array.n_chunks} chunks of {most}"
        f"{array.rows_per_chunk} samples ({text_of_bytes(array.chunk_bytes)}) in "
        f"{array.stored_per_chunk} stored; {branch.fetcher.describe(array)}"
    )


def _at_most(branch: Branch, room: _Room) -> bool:
    space = branch.planner.space
    if branch.pool_node.pool.n_resident or room.budget_bytes > room.floor_bytes:
        return True
    # A chunk that is planned to be read again can still be there: small blocks leave room.
    return space.has_offsets or not space.grid.common


def _reads_text(branch: Branch, start: Cursor, reads: Mapping[str, int], room: _Room) -> str:
    parts = ", ".join(f"{name} {count}" for name, count in reads.items())
    most = "at most " if _at_most(branch, room) else ""
    text = f"{most}{sum(reads.values())} stored chunks this pass ({parts})"
    planner = branch.planner
    if start.position == 0 and planner.ranks[1] == 1 and _is_whole(planner, start, reads):
        stored = planner.space.stored_per_chunk
        n_distinct = sum(n * stored[array] for array, n in enumerate(_n_chunks(planner)))
        text += f", {sum(reads.values()) / n_distinct:.2f} x the chunks it draws from"
    return text


def _is_whole(planner: ChunkPlanner, start: Cursor, reads: Mapping[str, int]) -> bool:
    # Of a mix, a source can be left before it drew from all of its chunks.
    return reads == planner.reads_from(start)


def _n_chunks(planner: ChunkPlanner) -> list[int]:
    """Distinct chunks of each array that the split is drawn from."""
    chunks = planner.space.chunks(np.arange(planner.space.n_units))
    n_chunks: list[int] = np.bincount(chunks[:, 0], minlength=len(planner.arrays)).tolist()
    return n_chunks


def _n_bytes(planner: ChunkPlanner) -> int:
    return sum(
        n * array.chunk_bytes for n, array in zip(_n_chunks(planner), planner.arrays, strict=True)
    )


def _memory_text(branch: Branch, start: Cursor, room: _Room) -> str:
    terms = branch.planner.floor_terms(start.lanes, start.n_draws)
    floor = text_of_bytes(sum(n * size for _, n, size in terms))
    parts = " + ".join(f"{name} {n} x {text_of_bytes(size)}" for name, n, size in terms)
    budget = branch.pool_node.pool.budget.text(room.budget_bytes)
    batch = text_of_bytes(branch.planner.plan.batch_size * branch.gather.draw_bytes)
    most = branch.gather.most_at_once
    n_batches = f"{room.n_batches} batches" if most == 1 else f"{room.n_batches} x {most} batches"
    return f"budget {budget}; floor {floor} ({parts}); beside it up to {n_batches} of {batch}"


def _later_text(planner: ChunkPlanner, start: Cursor, reads: Mapping[str, int], room: _Room) -> str:
    whole = f"all {sum(_n_chunks(planner))} chunks ({text_of_bytes(_n_bytes(planner))})"
    if room.budget_bytes < room.chunks_bytes:
        needed = text_of_bytes(room.chunks_bytes)
        return f"every epoch reads: {needed} would hold all chunks drawn from"
    left_out = planner.plan_of(start).left_out(start.position, planner.ranks[1])
    comes_to_all = start.position == 0 and planner.ranks[1] == 1 and not left_out
    is_all = comes_to_all and _is_whole(planner, start, reads)
    what = "nothing" if is_all else "only what was not read before"
    others = "" if room.is_own else ", if no other loader needs the room"
    return f"the budget holds {whole}: later epochs read {what}{others}"
