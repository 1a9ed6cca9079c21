"""The committed store is what its script makes of the original files."""

import pathlib

import numpy as np
import pytest
import xarray as xr
from scipy.io import netcdf_file

from examples.storm_forecast.make_store import ARRAYS, SOURCE, make_store

STORE = pathlib.Path(__file__).resolve().parents[2] / "examples/storm_forecast/storm.zarr"


@pytest.fixture
def source(request):
    """The original files: of Debian's package where it is installed, else of the shared data."""
    if (SOURCE / "Tstorm.cdf").exists():
        return SOURCE
    return request.getfixturevalue("shared_data") / "ncep-storm-1996"


def test_script_makes_the_committed_store_byte_for_byte(source, tmp_path):
    make_store(source, tmp_path / "storm.zarr")
    assert files(tmp_path / "storm.zarr") == files(STORE)


def test_xarray_reads_the_values_of_the_files_with_missing_ones_masked(source):
    with xr.open_zarr(STORE, consolidated=False) as dataset:
        assert str(dataset.time.values[-1])[:13] == "1996-01-20T18"
        for name, (stem, units, _) in ARRAYS.items():
            with netcdf_file(source / f"{stem}storm.cdf", mmap=False) as file:
                stored = file.variables[name[0]][:].astype(np.float32)
            expected = np.where(stored == -9999, np.nan, stored)
            np.testing.assert_array_equal(dataset[name].values, expected)
            assert dataset[name].attrs["units"] == units


def test_store_is_small():
    assert sum(len(content) for content in files(STORE).values()) < 1_000_000


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
