"""Arrays, views, splits and plans to draw examples of, each beside its naive description."""

import dataclasses
import itertools
import math
import warnings

from hypothesis import assume
from hypothesis import strategies as st

from tests.planning.arrays import make_array
from tests.planning.naive_plan import NaivePlan, NaiveSpace
from torchdata_insitu.errors import PlanError
from torchdata_insitu.geometry.view import stack
from torchdata_insitu.planning.anchor_space import AnchorSpace
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.planning.plan import Plan
from torchdata_insitu.planning.rank_stream import TAILS
from torchdata_insitu.planning.split import Split
from torchdata_insitu.planning.splits import split_by_chunk, split_by_range

# Chunks of 1 and 30, and of 7 and 10, are how archives that are trained on together differ; 4, 6
# and 9 have common edges that are fewer than those of any of them.
STEPS = (4, 6, 9, 3, 2, 1, 30, 7, 10)


@dataclasses.dataclass(repr=False)
class Views:
    """Views over up to three arrays, and each array as its first samples and offsets."""

    length: int
    views: dict
    starts: list
    offsets: list
    names: list
    stored: list

    def __repr__(self):
        views = {
            name: ([array.name for array in view.arrays], view.offsets)
            for name, view in self.views.items()
        }
        return f"Views({self.length} samples, starts={self.starts}, {views})"

    @property
    def span(self):
        reached = set().union(*self.offsets)
        return max(reached) - min(reached)

    def samples_read(self, anchors):
        """Samples that anchors read of any array."""
        return {a + o for a in anchors for offsets in self.offsets for o in offsets}

    def anchors(self, ranges):
        """Valid anchors among samples."""
        return NaiveSpace(self.length, self.starts, self.offsets, ranges).anchors


def lengths(least=1):
    # Grids that differ need some hundred samples to have four cells in common.
    few = st.integers(least, max(least, 40))
    many = st.integers(60, 180)
    return st.sampled_from([few, many, many]).flatmap(lambda chosen: chosen)


@st.composite
def chunkings(draw, length):
    """A step or a list of edges, and the first sample of each chunk."""
    kind = draw(st.sampled_from(["named step", "named step", "step", "ragged"]))
    if kind == "ragged" and length > 1:
        # Multiples of one number, so that lists have edges in common more often.
        unit = draw(st.integers(1, 6))
        inner = draw(st.sets(st.integers(1, max(1, (length - 1) // unit)), max_size=14))
        starts = sorted({0} | {unit * n for n in inner if unit * n < length})
        return [*starts, length], starts
    step = draw(st.sampled_from(STEPS) if kind == "named step" else st.integers(1, length + 9))
    return step, list(range(0, length, step))


@st.composite
def offset_lists(draw, reach_back, reach_ahead):
    """Offsets within a reach; near ones are as likely as far ones."""
    near = st.integers(-min(3, reach_back), min(3, reach_ahead))
    far = st.integers(-reach_back, reach_ahead)
    kind = draw(st.sampled_from(["none", "near", "far"]))
    if kind == "none":
        return [0]
    return draw(st.lists(near if kind == "near" else far, min_size=1, max_size=3))


@st.composite
def some_views(draw, least_length=1, most_reach=200):
    length = draw(lengths(least_length))
    reach = min(length - 1, most_reach, draw(st.sampled_from([4, 12, length])))
    back = draw(st.integers(0, reach))
    ahead = reach - back
    n_arrays = draw(st.integers(1, 3))
    arrays, starts, stored = [], [], []
    for name in "abc"[:n_arrays]:
        chunks, first = draw(chunkings(length))
        parts = draw(st.integers(1, 4))
        arrays.append(make_array(name, length, chunks, field_chunks=(parts,)))
        starts.append(first)
        stored.append(math.ceil(4 / parts))
    own = [draw(offset_lists(back, ahead)) for _ in arrays]
    views = {
        f"view of {array.name}": array.window(*window)
        if len(window) > 1 or draw(st.booleans())
        else array.shift(window[0])
        for array, window in zip(arrays, own, strict=True)
    }
    if n_arrays > 1 and draw(st.booleans()):
        window = draw(offset_lists(back, ahead))
        views["stack"] = stack(arrays[1], arrays[0]).window(*window)
        own = [window_of + window if number < 2 else window_of
               for number, window_of in enumerate(own)]  # fmt: skip
    offsets = [sorted(set(window)) for window in own]
    return Views(length, views, starts, offsets, [array.name for array in arrays], stored)


gaps = st.sampled_from(["auto", "auto", 0, 3])
FRACTIONS = [
    {"train": 0.8, "val": 0.1, "test": 0.1},
    {"train": 0.5, "val": 0.5},
    {"val": 0.2, "train": 0.8},
    {"train": 0.3, "val": 0.3},
    {"train": 1.0},
]


@st.composite
def sets_of_splits(draw, views, gap):
    """What `split_by_chunk` and `split_by_range` make of these views; None if they refuse."""
    length = views.length
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if draw(st.booleans()):
                within = None
                if draw(st.booleans()):
                    start = draw(st.integers(0, length - 1))
                    within = (start, draw(st.integers(start + 1, length)))
                return split_by_chunk(
                    views.views,
                    draw(st.sampled_from(FRACTIONS)),
                    contiguous=draw(st.booleans()),
                    gap=gap,
                    sample_range=within,
                    seed=draw(st.integers(0, 3)),
                )
            borders = sorted(draw(st.sets(st.integers(0, length), min_size=2, max_size=7)))
            ranges = {}
            for pair in itertools.pairwise(borders):
                name = draw(st.sampled_from(["train", "val", "nobody"]))
                if name != "nobody":
                    ranges.setdefault(name, []).append(pair)
            return split_by_range(views.views, ranges, gap=gap)
        except PlanError:
            return None


@st.composite
def some_splits(draw, views):
    """One split, or None for all samples, with its ranges."""
    kind = draw(st.sampled_from(["all", "made", "given", "all"]))
    length = views.length
    split = None
    if kind == "given":
        borders = sorted(draw(st.sets(st.integers(0, length), max_size=6)))
        pairs = tuple(zip(borders[::2], borders[1::2], strict=False))
        split = Split("train", pairs, length) if pairs else None
    elif kind == "made":
        made = draw(sets_of_splits(views, draw(gaps)))
        split = draw(st.sampled_from(list(made.values()))) if made else None
    return split, list(split.ranges) if split else [(0, length)]


@dataclasses.dataclass
class Case:
    """A plan, the same plan by hand, and the pass of one rank."""

    views: Views
    split: Split | None
    space: AnchorSpace
    plan: Plan
    naive: NaivePlan
    cursor: Cursor
    rank: int
    world_size: int

    @property
    def stop(self):
        """First position that the tail does not deliver."""
        return self.plan.n_draws - self.plan.left_out(self.cursor.position, self.world_size)

    @property
    def place(self):
        """Where the pass begins, as `Plan.reads` takes it."""
        return {
            "world_size": self.world_size,
            "epoch": self.cursor.epoch,
            "lanes": self.cursor.lanes,
            "position": self.cursor.position,
        }

    def segments(self, rank=None):
        return self.plan.segments(self.cursor, self.rank if rank is None else rank, self.world_size)


@st.composite
def cases(draw, *, from_start=False):
    views = draw(some_views())
    split, ranges = draw(some_splits(views))
    naive = NaiveSpace(views.length, views.starts, views.offsets, ranges)
    assume(naive.anchors)
    space = AnchorSpace(views.views, split)
    settings = {
        "seed": draw(st.integers(0, 3)),
        "shuffle": draw(st.booleans()),
        "block_chunks": draw(st.integers(1, 12)),
        "run_chunks": draw(st.one_of(st.none(), st.integers(1, 6))),
    }
    plan = Plan(
        space,
        **settings,
        batch_size=draw(st.sampled_from([1, 2, 3, 5, 8, 13, 40])),
        tail=draw(st.sampled_from(TAILS)),
    )
    if settings["run_chunks"] is None:
        # Rule of the design: one without offsets, else a quarter of a block.
        is_plain = all(offsets == [0] for offsets in views.offsets)
        settings["run_chunks"] = 1 if is_plain else max(1, settings["block_chunks"] // 4)
    epoch, lanes = draw(st.integers(0, 2)), draw(st.integers(1, 6))
    world_size = draw(st.integers(1, 5))
    rank = draw(st.integers(0, world_size - 1))
    places = [0, 0, plan.n_draws // 3, plan.n_draws // 2, plan.n_draws]
    position = 0 if from_start else draw(st.sampled_from(places) | st.integers(0, plan.n_draws))
    by_hand = NaivePlan(naive, epoch=epoch, lanes=lanes, **settings)
    cursor = Cursor(epoch, position, lanes)
    return Case(views, split, space, plan, by_hand, cursor, rank, world_size)
