"""Chunks of an axis and views over arrays, against lists and ranges."""

import itertools
import math
import pickle

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.depths import examples
from tests.planning.arrays import make_array
from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.chunk_grid import AxisChunks, ChunkGrid
from torchdata_insitu.geometry.view import array_offsets, as_views, stack

NAMES = "abc"
# Axes of hourly archives have a million samples; a step or a length near the end of int64 is a
# number in somebody's metadata.
LARGE = 2**62


def cut(length, edges):
    """Chunks as lists of their elements."""
    return [list(range(*pair)) for pair in itertools.pairwise([*edges, length])]


@st.composite
def axes(draw):
    """An axis by a step or by edges, with its chunks as lists of elements."""
    length = draw(st.integers(0, 90))
    kind = draw(st.sampled_from(["step", "1", "7", "10", "30", "edges"]))
    if kind != "edges":
        step = draw(st.integers(1, 100)) if kind == "step" else int(kind)
        return AxisChunks.regular(length, step), cut(length, range(0, length, step))
    inner = draw(st.sets(st.integers(1, max(1, length - 1)), max_size=12)) if length > 1 else set()
    starts = sorted({0} | inner) if length else []
    return AxisChunks.rectilinear([*starts, length]), cut(length, starts)


@examples(200, axes())
def test_every_question_is_answered_by_the_same_chunks(case):
    axis, chunks = case
    owner = [number for number, chunk in enumerate(chunks) for _ in chunk]
    starts = [chunk[0] for chunk in chunks]
    assert list(itertools.chain(*chunks)) == list(range(axis.length))
    assert axis.n_chunks == len(chunks)
    assert [axis.bounds(n) for n in range(axis.n_chunks)] == [(c[0], c[-1] + 1) for c in chunks]
    assert axis.chunk_of(np.arange(axis.length)).tolist() == owner
    assert axis.starts(np.arange(axis.n_chunks)).tolist() == starts
    assert axis.all_edges().tolist() == [*starts, axis.length]
    assert axis.largest >= max(map(len, chunks), default=0)
    for outside in (-1, axis.n_chunks, axis.n_chunks + 5):
        with pytest.raises(GeometryError, match=f"chunk {outside} is outside the {len(chunks)}"):
            axis.bounds(outside)


@examples(100, axes(), st.data())
def test_a_step_and_the_list_of_its_edges_are_the_same_chunks(case, data):
    axis, _ = case
    listed = AxisChunks.rectilinear(axis.all_edges())
    assert (listed.length, listed.n_chunks) == (axis.length, axis.n_chunks)
    assume(axis.length)
    shape = data.draw(st.sampled_from([(0,), (1,), (3,), (2, 2), (2, 0, 3)]))
    index = data.draw(st.lists(st.integers(0, axis.length - 1), min_size=math.prod(shape),
                               max_size=math.prod(shape)))  # fmt: skip
    for dtype in (np.int64, np.int32, np.uint16):
        asked = np.array(index, dtype=dtype).reshape(shape)
        chunks = listed.chunk_of(asked)
        assert chunks.shape == axis.chunk_of(asked).shape == shape
        assert chunks.dtype == axis.chunk_of(asked).dtype == np.int64
        assert (chunks == axis.chunk_of(asked)).all()
        assert (listed.starts(chunks) == axis.starts(chunks)).all()
        assert axis.starts(chunks).dtype == listed.starts(chunks).dtype == np.int64


@examples(150, st.lists(st.integers(1, 9), max_size=12), st.integers(0, 40))
def test_stored_sizes_are_cut_where_the_axis_ends(sizes, length):
    """Chunks that begin past the end are no part of the grid; the last one may reach past it."""
    if sum(sizes) < length:
        with pytest.raises(GeometryError, match="do not cover an axis"):
            AxisChunks.of_sizes(length, sizes)
        return
    axis = AxisChunks.of_sizes(length, sizes)
    starts = [start for start in [0, *itertools.accumulate(sizes)][: len(sizes)] if start < length]
    assert axis.length == length
    assert axis.all_edges().tolist() == [*starts, length]
    assert [axis.stored_size(n) for n in range(axis.n_chunks)] == sizes[: len(starts)]
    if starts:
        assert axis.largest == max(sizes[: len(starts)])
    assert axis == pickle.loads(pickle.dumps(axis))
    # Equal chunks are a step, however they were written.
    if starts and len(set(sizes[: len(starts)])) == 1:
        assert axis == AxisChunks.regular(length, sizes[0])


@given(st.integers(1, 9), st.integers(1, 10**30))
def test_a_last_chunk_may_reach_far_past_the_end(first, last):
    """Sizes are numbers of somebody's metadata, whose limits are checked where they are read."""
    axis = AxisChunks.of_sizes(first + 1, [first, last])
    assert (axis.n_chunks, axis.largest, axis.stored_size(1)) == (2, max(first, last), last)


@given(st.integers(0, 9), st.integers(1, 9))
def test_an_overhang_belongs_to_a_chunk(step, overhang):
    """An axis without elements has no chunk that could reach past its end."""
    with pytest.raises(GeometryError, match="overhang"):
        AxisChunks.rectilinear([0], overhang=overhang)
    with pytest.raises(GeometryError, match="overhang"):
        AxisChunks(length=step, step=step + 1, edges=None, overhang=overhang)


@given(st.lists(st.integers(-2, 9), min_size=1, max_size=6), st.integers(0, 5))
def test_a_stored_chunk_has_an_element(sizes, length):
    if min(sizes) < 1:
        with pytest.raises(GeometryError, match="at least 1"):
            AxisChunks.of_sizes(length, sizes)


@given(st.integers(1, LARGE), st.integers(1, LARGE), st.data())
def test_long_axes_are_cut_alike(length, step, data):
    axis = AxisChunks.regular(length, step)
    assert axis.n_chunks == -(-length // step)
    sample = data.draw(st.integers(0, length - 1))
    (chunk,) = axis.chunk_of(np.array([sample])).tolist()
    assert chunk == sample // step
    first, stop = axis.bounds(chunk)
    assert first <= sample < stop <= length
    assert (first, stop) == (chunk * step, min(length, (chunk + 1) * step))
    assert axis.starts(np.array([chunk])).tolist() == [first]


@given(st.lists(st.integers(-2, 30), max_size=6))
def test_a_list_is_taken_exactly_if_it_rises_from_zero(edges):
    rises = bool(edges) and edges[0] == 0 and all(a < b for a, b in itertools.pairwise(edges))
    if rises:
        assert AxisChunks.rectilinear(edges).all_edges().tolist() == edges
        return
    with pytest.raises(GeometryError, match="axis"):
        AxisChunks.rectilinear(edges)


@given(st.lists(axes(), max_size=4))
def test_a_grid_has_the_product_of_its_axes(cases):
    grid = ChunkGrid(tuple(axis for axis, _ in cases))
    counts = [len(chunks) for _, chunks in cases]
    assert (grid.ndim, list(grid.shape), grid.n_chunks) == (len(counts), counts, math.prod(counts))


@given(axes())
def test_an_axis_is_a_value(case):
    axis, _ = case
    copy = pickle.loads(pickle.dumps(axis))
    assert copy == axis
    assert hash(copy) == hash(axis)


OFFSETS = st.integers(-12, 12)
WINDOWS = st.lists(OFFSETS, min_size=1, max_size=4)


def arrays_of(length, n=2):
    return [make_array(name, length, step + 2) for step, name in enumerate(NAMES[:n])]


@given(OFFSETS, OFFSETS, WINDOWS)
def test_shifts_add_up_and_windows_count_from_where_a_view_stands(first, second, window):
    (array,) = arrays_of(40, 1)
    view = array.shift(first)
    assert view.offsets == (first,)
    assert view.shift(second) == array.shift(first + second)
    assert view.shift(second).shift(-second) == view
    windowed = array.window(*window)
    assert windowed.offsets == tuple(window)
    assert view.window(*window) == windowed.shift(first)
    assert windowed.shift(first).offsets == tuple(first + offset for offset in window)
    assert (windowed.min_offset, windowed.max_offset) == (min(window), max(window))
    with pytest.raises(GeometryError, match="a window"):
        windowed.window(0)


@given(st.integers(1, 3), OFFSETS, WINDOWS, st.lists(st.integers(0, 3), max_size=2))
def test_a_stack_is_shifted_as_its_arrays_are(n_arrays, offset, window, field):
    shape = {"field": tuple(field), "field_chunks": tuple(max(1, n) for n in field)}
    arrays = [make_array(name, 40, 3, **shape) for name in NAMES[:n_arrays]]
    both = stack(*arrays)
    assert both.arrays == tuple(arrays)
    assert both.shift(offset) == stack(*(array.shift(offset) for array in arrays))
    assert both.window(*window) == stack(*(array.window(*window) for array in arrays))
    assert both.sample_shape == (n_arrays, *field)
    assert both.window(*window).sample_shape == (len(window), n_arrays, *field)
    assert arrays[0].window(*window).sample_shape == (len(window), *field)
    assert arrays[0].shift(offset).sample_shape == tuple(field)
    with pytest.raises(GeometryError, match="stacked already"):
        stack(both, arrays[0])


@given(OFFSETS, WINDOWS, OFFSETS)
def test_views_at_other_offsets_do_not_stack(offset, window, other):
    first, second = arrays_of(40)
    if offset == other:
        assert stack(first.shift(offset), second.shift(other)).offsets == (offset,)
    else:
        with pytest.raises(GeometryError, match="cannot stack"):
            stack(first.shift(offset), second.shift(other))
    with pytest.raises(GeometryError, match="cannot stack"):
        stack(first.shift(offset), second.window(*window))


@st.composite
def mappings(draw):
    """Views over two arrays, each alone or in a stack, with what each array is read at."""
    length = draw(st.integers(1, 14))
    arrays = arrays_of(length)
    views, read = {}, {}
    for number in range(draw(st.integers(1, 4))):
        used = draw(st.lists(st.sampled_from(range(2)), min_size=1, max_size=3))
        window = draw(WINDOWS)
        item = stack(*(arrays[k] for k in used)) if len(used) > 1 else arrays[used[0]]
        if draw(st.booleans()):
            views[f"view {number}"] = item.window(*window)
        else:
            window = window[:1]
            views[f"view {number}"] = item.shift(window[0])
        for k in used:
            read.setdefault(k, set()).update(window)
    return length, arrays, views, read


@examples(200, mappings())
def test_views_are_taken_exactly_if_some_anchor_has_them_all(case):
    length, arrays, views, read = case
    offsets = set().union(*read.values())
    anchors = [a for a in range(length) if all(0 <= a + offset < length for offset in offsets)]
    if not anchors:
        with pytest.raises(GeometryError, match=f"has {length}: no anchor has them all"):
            as_views(views)
        return
    taken = as_views(views)
    assert list(taken.items()) == list(views.items())
    expected = [(arrays[k], tuple(sorted(own))) for k, own in read.items()]
    assert list(array_offsets(taken).items()) == expected


@given(st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_arrays_of_unequal_length_are_neither_drawn_nor_stacked_together(first, second, swapped):
    a, b = make_array("a", first, 2), make_array("b", second, 3)
    views = {"y": b, "x": a} if swapped else {"x": a, "y": b}
    if first == second:
        assert as_views(views)
        assert stack(a, b)
        return
    for call in (lambda: as_views(views), lambda: stack(a, b)):
        with pytest.raises(GeometryError) as caught:
            call()
        for fact in ("'a'", "'b'", str(first), str(second)):
            assert fact in str(caught.value)


@given(st.sampled_from([1.0, 0.5, "1", None, True, (1,), np.float32(2), 1j]), WINDOWS)
def test_an_offset_is_a_whole_number(offset, window):
    (array,) = arrays_of(40, 1)
    for call in (array.shift, array.window, array.window(*window).shift, stack(array).shift):
        with pytest.raises(GeometryError, match="whole number of samples, not "):
            call(offset)
