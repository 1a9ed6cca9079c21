import pytest

from tests.planning.arrays import make_array
from torchdata_insitu.planning.planning_grid import planning_edges
from torchdata_insitu.planning.sample_ranges import as_ranges


def grid_of(length, *chunks, **settings):
    arrays = [make_array(str(number), length, chunk) for number, chunk in enumerate(chunks)]
    return planning_edges(arrays, **settings)


def test_equal_chunks_are_the_cells():
    grid = grid_of(100, 24, 24)
    assert (grid.edges.step, grid.common, grid.reread) == (24, True, (1.0, 1.0))


def test_cells_are_the_least_common_multiple_of_the_steps():
    grid = grid_of(100, 4, 6)
    assert (grid.edges.step, grid.common, grid.reread) == (12, True, (1.0, 1.0))


def test_fine_and_coarse_chunks_are_planned_in_the_coarse_ones():
    grid = grid_of(600, 1, 30)
    assert (grid.edges.n_chunks, grid.common, grid.reread) == (20, True, (1.0, 1.0))


def test_cells_are_the_common_edges_of_lists():
    grid = grid_of(60, [0, 5, 10, 25, 40, 50, 60], [0, 10, 25, 30, 50, 60])
    assert grid.edges.edges == (0, 10, 25, 50, 60)


def test_cells_of_a_list_and_a_step_are_common_to_both():
    grid = grid_of(62, [0, 5, 10, 25, 30, 40, 50, 62], 10)
    assert grid.edges.edges == (0, 10, 30, 40, 50, 62)


def test_too_few_common_cells_give_way_to_the_coarsest_array():
    grid = grid_of(120, 7, 10)
    assert (grid.edges.step, grid.common) == (10, False)
    # 18 chunks of 7; of the 11 edges between cells of 10 only that at 70 is an edge of theirs.
    assert grid.reread == (pytest.approx((18 + 10) / 18), 1.0)


def test_few_cells_stay_where_the_coarsest_array_has_no_more():
    grid = grid_of(90, 1, 30)
    assert (grid.edges.n_chunks, grid.common) == (3, True)


def test_more_lanes_need_more_cells():
    assert grid_of(700, 7, 10, lanes=2).common
    assert not grid_of(700, 7, 10, lanes=3).common


def test_a_cell_above_the_budget_gives_way_to_the_coarsest_array():
    # A cell of 70 samples of two arrays is 70 * 2 * 16 bytes.
    assert grid_of(700, 7, 10, budget_bytes=2240).common
    grid = grid_of(700, 7, 10, budget_bytes=2239)
    assert (grid.edges.step, grid.common) == (10, False)


def test_only_the_cells_that_are_drawn_count():
    assert grid_of(2000, 7, 10).common
    assert not grid_of(2000, 7, 10, ranges=as_ranges([(0, 100), (150, 180)])).common


def test_a_chunk_longer_than_the_axis_is_one_cell():
    grid = grid_of(3, 8)
    assert (grid.edges.n_chunks, grid.reread) == (1, (1.0,))


def test_a_cell_is_not_many_chunks_of_the_coarsest_array():
    years = [make_array("a", 1_300_000, 365), make_array("b", 1_300_000, 366)]
    grid = planning_edges(years)
    assert (grid.common, grid.edges.largest) == (False, 366)


def test_steps_whose_common_multiple_has_no_end():
    primes = [1_000_003, 1_000_033, 1_000_037, 1_000_039, 1_000_081]
    arrays = [make_array(str(step), 40_000_000, step) for step in primes]
    assert planning_edges(arrays).edges.largest in primes
