from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torchdata_insitu.geometry.chunk_grid import AxisChunks
from torchdata_insitu.planning.sample_ranges import (
    as_ranges,
    clip,
    cut_on_chunks,
    first_samples,
    n_common,
    n_samples,
    union,
)

LENGTH = 40
PAIRS = st.tuples(st.integers(0, LENGTH - 1), st.integers(1, LENGTH)).filter(lambda p: p[0] < p[1])
ANY_RANGES = st.lists(PAIRS, max_size=5)
EDGES = st.lists(st.integers(1, LENGTH - 1), unique=True).map(
    lambda inner: AxisChunks.rectilinear([0, *sorted(inner), LENGTH])
)
CHUNKS = st.one_of(EDGES, st.builds(AxisChunks.regular, st.just(LENGTH), st.integers(1, 50)))


def members(ranges):
    return [sample for start, stop in ranges for sample in range(start, stop)]


@given(ANY_RANGES)
def test_union_holds_the_same_samples_once(pairs):
    joined = union(as_ranges(pairs)).tolist()
    assert members(joined) == sorted(set(members(pairs)))
    assert all(first[1] < second[0] for first, second in pairwise(joined))


@given(ANY_RANGES, ANY_RANGES)
def test_common_samples_are_counted(ours, theirs):
    common = n_common(union(as_ranges(ours)), union(as_ranges(theirs)))
    assert common == len(set(members(ours)) & set(members(theirs)))


@given(ANY_RANGES, PAIRS)
def test_clip_keeps_what_is_inside(pairs, window):
    inside = [sample for sample in members(pairs) if window[0] <= sample < window[1]]
    clipped = clip(as_ranges(pairs), *window)
    assert members(clipped.tolist()) == inside
    assert n_samples(clipped) == len(inside)


@given(ANY_RANGES, CHUNKS)
def test_pieces_are_the_ranges_cut_at_every_edge(pairs, chunks):
    ranges = union(as_ranges(pairs))
    pieces = cut_on_chunks(chunks, ranges)
    assert members(pieces.tolist()) == members(ranges.tolist())
    assert (chunks.chunk_of(pieces[:, 0]) == chunks.chunk_of(pieces[:, 1] - 1)).all()
    edges = set(chunks.all_edges().tolist())
    borders = {edge for pair in ranges.tolist() for edge in pair}
    assert {edge for pair in pieces.tolist() for edge in pair} <= edges | borders
    assert np.diff(pieces, axis=1).min(initial=1) > 0


@given(ANY_RANGES, st.integers(0, LENGTH + 1))
def test_the_first_samples_are_the_first_of_all(pairs, n):
    ranges = union(as_ranges(pairs))
    assert members(first_samples(ranges, n)) == members(ranges)[:n]
