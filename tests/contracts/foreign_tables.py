"""Which arrays of other writers are refused, which are empty, and which must be read."""

from importlib.util import find_spec
from typing import NamedTuple

import pytest

from tests.contracts.foreign_stores import DATA, foreign_arrays, matching, zarr_store

PLENTY = 10**8
N_BATCHES = 3


class Row(NamedTuple):
    """Arrays whose ids match a pattern, how many they are, and what is said of them."""

    pattern: str
    n: int
    says: str


TEXT = "store integer codes instead of text"
REFUSED = (
    Row("foreign-writers/*/v3_bfloat16_UNSUPPORTED.zarr", 1, "dtype 'bfloat16'"),
    Row("*/ref_noshape.file.zip/*", 1, "scalar"),
    Row("*/storage_transformer/exists", 1, "storage.transformers"),
    Row("*/v2/data.*/1d.contiguous.S7", 3, TEXT),
    Row("*/v2/data.*/*.U7", 6, TEXT),
    Row("*/v2/data.*/1d.contiguous.U13.?e", 6, TEXT),
    Row("*/v2/data.*/*.O", 6, TEXT),
    Row("*/v3/data.*/*.string.*", 24, TEXT),
    Row("*/issue_287.zarr/meta/[bc]*", 2, TEXT),
    Row("*/cities_v3.zarr", 1, TEXT),
    Row("*/fixed_length_utf32_*.zarr", 3, TEXT),
    Row("*/str_v2_fv_*.zarr", 2, TEXT),
    Row("*/v3_bytes.zarr", 1, "dtype 'variable_length_bytes'"),
    Row("*/array_optional*.zarr/array", 2, "dtype 'optional'"),
    Row("*/codec/bitround/*", 2, "bitround"),
    *(Row(f"*/array_{name}*.zarr", 3, name) for name in ("pcodec", "zfpy") if not find_spec(name)),
)
"""No tensor holds them, or no codec that is installed reads them."""

EMPTY = (
    Row("*/ome/v0.6_scene/*", 6, "no chunk"),
    Row("*/hierarchy.zarr/a/*", 2, "no chunk"),
    Row("*/storage_transformer/empty", 1, "no chunk"),
    Row("*/ref_byte.zarr.zip/*", 1, "no chunk"),
    Row("*/ref_power_901_constants_orig.zip/*", 4, "no chunk"),
    Row("*/ref_quotes_orig.zip/*", 1, "no chunk"),
)
"""Metadata alone was kept of them."""

COORDINATES = ("*/cube-1-250-250.level1.zarr/lat", "*/*.level1.zarr/lon", "*/*.level1.zarr/time")


def rows(table):
    return [array for row in table for array in matching(row.pattern)]


def each(arrays):
    """One parameter per array; one that is skipped where the files are not here."""
    return [pytest.param(array, id=array.id) for array in arrays] or [None]


def says(array, table):
    return next(row.says for row in table if array in matching(row.pattern))


NOT_READ = {*rows(REFUSED), *rows(EMPTY)}
READ = [array for array in foreign_arrays() if array not in NOT_READ]
# Arrays of which a folder holds the same.
COPIES = [array for array in matching("*/zarrita.js-fixtures/*.zip/*") if array in READ]


def store_of(array):
    """A path, or a zip file that is open."""
    return zarr_store(array.store) if array.store.suffix == ".zip" else array.store


def folder_of(path):
    """A folder that is there."""
    if not (DATA / path).is_dir():
        pytest.skip(f"no folder {path} in ../shared/data")
    return DATA / path


def check_bits(values, expected):
    assert (values.dtype, values.shape) == (expected.dtype, expected.shape)
    # Compared as a whole: a diff of so many bytes would take minutes to write.
    is_equal = values.tobytes() == expected.tobytes()
    assert is_equal, f"{values!r}\nis not\n{expected!r}"
