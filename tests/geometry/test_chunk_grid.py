import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.chunk_grid import AxisChunks, ChunkGrid


def regular_sizes(length, step):
    return [min(step, length - start) for start in range(0, length, step)]


@st.composite
def axes_with_sizes(draw):
    """An axis, and the number of elements in each of its chunks."""
    if draw(st.booleans()):
        length, step = draw(st.integers(0, 60)), draw(st.integers(1, 70))
        return AxisChunks.regular(length, step), regular_sizes(length, step)
    sizes = draw(st.lists(st.integers(1, 9), max_size=12))
    return AxisChunks.rectilinear(np.cumsum([0, *sizes])), sizes


@given(axes_with_sizes())
def test_chunks_tile_the_axis_in_order(case):
    axis, sizes = case
    owner = np.repeat(np.arange(len(sizes)), sizes)
    bounds = [axis.bounds(chunk) for chunk in range(axis.n_chunks)]
    assert axis.n_chunks == len(sizes)
    assert axis.length == sum(sizes)
    assert [stop - start for start, stop in bounds] == sizes
    assert axis.chunk_of(np.arange(axis.length)).tolist() == owner.tolist()
    assert [axis.chunk_at(element) for element in range(axis.length)] == owner.tolist()
    assert axis.starts(np.arange(axis.n_chunks)).tolist() == [start for start, _ in bounds]
    assert axis.all_edges().tolist() == [0, *np.cumsum(sizes)]


@given(axes_with_sizes())
def test_the_largest_chunk_holds_every_chunk(case):
    axis, sizes = case
    assert axis.largest >= max(sizes, default=0)
    if axis.step is None:
        assert axis.largest == max(sizes, default=0)
    else:
        assert axis.largest == axis.step


def test_vectorised_questions_keep_the_shape_of_the_question():
    for axis in (AxisChunks.regular(10, 4), AxisChunks.rectilinear([0, 4, 8, 10])):
        index = np.array([[0, 9], [4, 3]])
        assert axis.chunk_of(index).tolist() == [[0, 2], [1, 0]]
        assert axis.chunk_of(index).dtype == np.int64
        assert axis.starts(np.array([[2], [0]])).tolist() == [[8], [0]]


@pytest.mark.parametrize("edges", [(), (0, 3, 3), (1, 4), (0, 5, 2)])
def test_edges_that_do_not_rise_from_zero_are_refused(edges):
    with pytest.raises(GeometryError, match="edges"):
        AxisChunks(length=edges[-1] if edges else 0, step=None, edges=edges)


@pytest.mark.parametrize("step, edges", [(None, None), (3, (0, 3)), (0, None), (-1, None)])
def test_a_grid_is_given_by_one_usable_step_or_edge_list(step, edges):
    with pytest.raises(GeometryError):
        AxisChunks(length=3, step=step, edges=edges)


def test_a_chunk_that_does_not_exist_has_no_bounds():
    for ask in (AxisChunks.regular(10, 4).bounds, AxisChunks.regular(10, 4).stored_size):
        with pytest.raises(GeometryError, match="chunk 3 is outside the 3 chunks"):
            ask(3)


@pytest.mark.parametrize(
    "length, sizes, step, edges, overhang",
    [
        (10, [4, 4, 2], None, (0, 4, 8, 10), 0),
        (10, [4, 4, 9], None, (0, 4, 8, 10), 7),
        (10, [4, 4, 4], 4, None, 0),
        (10, [5, 5], 5, None, 0),
        (10, [12], 12, None, 0),
        (10, [3, 7, 5, 5], None, (0, 3, 10), 0),
        (10, [5, 5, 3], 5, None, 0),
        (0, [4, 5], 1, None, 0),
        (0, [], 1, None, 0),
    ],
)
def test_stored_sizes_become_a_step_where_they_are_equal(length, sizes, step, edges, overhang):
    axis = AxisChunks.of_sizes(length, sizes)
    assert (axis.length, axis.step, axis.edges, axis.overhang) == (length, step, edges, overhang)
    used = [axis.stored_size(chunk) for chunk in range(axis.n_chunks)]
    assert used == sizes[: axis.n_chunks]
    assert axis.largest == (max(used) if used else step)


@pytest.mark.parametrize("sizes", [[4, 5], [], [4, 0, 6], [11, -1], [-5]])
def test_stored_sizes_that_do_not_cover_the_axis_are_refused(sizes):
    with pytest.raises(GeometryError, match="do not cover an axis of 10"):
        AxisChunks.of_sizes(10, sizes)


def test_many_sizes_are_not_all_shown():
    with pytest.raises(GeometryError) as raised:
        AxisChunks.of_sizes(10**6, [7] * 1000)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("step, edges, overhang", [(4, None, 1), (None, (0, 4, 10), -1)])
def test_only_edges_have_an_overhang(step, edges, overhang):
    with pytest.raises(GeometryError, match="overhang"):
        AxisChunks(length=10, step=step, edges=edges, overhang=overhang)


def test_grid_counts_chunks_per_axis():
    grid = ChunkGrid(
        (AxisChunks.regular(37, 5), AxisChunks.regular(5, 2), AxisChunks.regular(1, 8))
    )
    assert (grid.ndim, grid.shape, grid.n_chunks) == (3, (8, 3, 1), 24)
