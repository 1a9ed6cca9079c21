"""Rows of draws come out the same whichever stretch of them is asked for."""

import numpy as np
import pytest

from torchdata_insitu.errors import InSituError
from torchdata_insitu.gather import drawn_rows
from torchdata_insitu.gather.drawn_rows import DrawnRows
from torchdata_insitu.gather.row_lookup import RowLookup
from torchdata_insitu.geometry.chunk_grid import AxisChunks

N_SAMPLES = 120
FIRST_ROWS = {"a": np.array([7, 100, 31, 53, 200]), "b": np.array([0, 300, 24, 72, 48])}


@pytest.fixture
def lookups():
    chunks = AxisChunks.regular(N_SAMPLES, 24)
    return [RowLookup(name, chunks, np.arange(5), first) for name, first in FIRST_ROWS.items()]


def row(array, sample):
    return FIRST_ROWS[array][sample // 24] + sample % 24


def test_every_stretch_of_draws_has_the_rows_of_its_samples(lookups, monkeypatch):
    anchors = np.random.default_rng(0).permutation(N_SAMPLES - 3)
    views = {"x": ((0, 1), np.array([0, 3])), "y": ((1,), np.array([2]))}
    # So few at once that stretches lie in one, across two, and are longer than one.
    monkeypatch.setattr(drawn_rows, "_ROWS_AT_ONCE", 40)
    rows = DrawnRows(anchors, lookups, views)
    for start, stop in [(0, 7), (7, 10), (10, 10), (10, 43), (43, 44), (44, 117), (3, 5)]:
        drawn = anchors[start:stop]
        expected = [[[row("a", t + o), row("b", t + o)] for o in (0, 3)] for t in drawn]
        found = rows.of("x", start, stop)
        assert found.shape == (stop - start, 2, 2)
        np.testing.assert_array_equal(found, np.array(expected, np.int64).reshape(found.shape))
        only = [[[row("b", t + 2)]] for t in drawn]
        np.testing.assert_array_equal(rows.of("y", start, stop), np.array(only).reshape(-1, 1, 1))


def test_draws_of_many_batches_are_looked_up_once(lookups, monkeypatch):
    asked = []
    found = RowLookup.rows
    monkeypatch.setattr(
        RowLookup,
        "rows",
        lambda self, samples: (asked.append(samples.size), found(self, samples))[1],
    )
    rows = DrawnRows(np.arange(100), lookups, {"x": ((0,), np.array([0]))})
    for start in range(0, 100, 10):
        rows.of("x", start, start + 10)
    assert asked == [100]


def test_a_chunk_that_is_not_resident_is_an_error_that_names_it():
    lookup = RowLookup("a", AxisChunks.regular(N_SAMPLES, 24), np.array([0, 2]), np.array([0, 24]))
    rows = DrawnRows(np.arange(0, 60, 10), [lookup], {"x": ((0,), np.array([0]))})
    with pytest.raises(InSituError, match="chunk 1 of array 'a' is not resident for sample 30"):
        rows.of("x", 0, 2)
