"""Make ``storm.zarr``, the store of this example, from the netCDF files it comes from.

Source: the package libncarg-data of Debian (``apt-get install libncarg-data``), whose files
``/usr/share/ncarg/data/cdf/{T,P,U,V,U500,V500}storm.cdf`` hold NCEP analyses of the blizzard of
January 1996 over North America. NOTICE beside this file has the licence and says what is changed.

Usage: ``python make_store.py [--source FOLDER] [--out STORE]``. The same files give the same store,
byte for byte. Reading netCDF needs SciPy.
"""

import argparse
import base64
import pathlib
import shutil
import struct
from typing import Any

import numpy as np
import zarr
from scipy.io import netcdf_file
from zarr.codecs import ZstdCodec

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = pathlib.Path("/usr/share/ncarg/data/cdf")
FILL = -9999.0
CHUNKS = (2, 17, 18)

# The files name neither units nor levels: both follow from the values and from the file names.
ARRAYS = {
    "t": ("T", "K", "air temperature near the surface"),
    "p": ("P", "Pa", "air pressure at mean sea level"),
    "u": ("U", "m s-1", "eastward wind near the surface"),
    "v": ("V", "m s-1", "northward wind near the surface"),
    "u500": ("U500", "m s-1", "eastward wind at 500 hPa"),
    "v500": ("V500", "m s-1", "northward wind at 500 hPa"),
}


def make_store(source: pathlib.Path, out: pathlib.Path) -> None:
    """Write the store ``out``, replacing what is there.

    Args:
        source: folder with the six netCDF files.
        out: the store to write.
    """
    shutil.rmtree(out, ignore_errors=True)
    group = zarr.create_group(
        str(out),
        zarr_format=3,
        attributes={
            "Conventions": "CF-1.10",
            "title": "NCEP analyses over North America, blizzard of January 1996",
            "source": "Debian package libncarg-data, ncarg/data/cdf/*storm.cdf",
            "license": "see NOTICE beside this store",
        },
    )
    for name, (stem, units, long_name) in ARRAYS.items():
        values, lat, lon = read_file(source / f"{stem}storm.cdf", name[0])
        add_array(
            group,
            name,
            values,
            dimensions=("time", "lat", "lon"),
            chunks=CHUNKS,
            # CF's mark of a missing value, written as xarray writes a float's: base64 of a double.
            _FillValue=base64.b64encode(struct.pack("<d", FILL)).decode(),
            units=units,
            long_name=long_name,
        )
    hours = np.arange(len(values), dtype=np.int64) * 6
    add_array(
        group,
        "time",
        hours,
        dimensions=("time",),
        units="hours since 1996-01-05 00:00:00",
        calendar="proleptic_gregorian",
        standard_name="time",
    )
    add_array(group, "lat", lat, dimensions=("lat",), units="degrees_north")
    add_array(group, "lon", lon, dimensions=("lon",), units="degrees_east")


def read_file(path: pathlib.Path, variable: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read one netCDF file.

    Returns:
        The variable ``(time, lat, lon)``, the latitudes and the longitudes, as stored, in native
        byte order.
    """
    with netcdf_file(path, mmap=False) as file:
        stored = [file.variables[name][:] for name in (variable, "lat", "lon")]
    values, lat, lon = (np.ascontiguousarray(a, dtype=a.dtype.newbyteorder("=")) for a in stored)
    return values, lat, lon


def add_array(
    group: zarr.Group,
    name: str,
    values: np.ndarray,
    *,
    dimensions: tuple[str, ...],
    chunks: tuple[int, ...] | None = None,
    **attributes: Any,
) -> None:
    """Add one array to the store; one chunk and no fill value where ``chunks`` is None."""
    array = group.create_array(
        name,
        shape=values.shape,
        dtype=values.dtype,
        chunks=chunks or values.shape,
        fill_value=FILL if chunks else 0,
        compressors=[ZstdCodec(level=19)],
        dimension_names=dimensions,
        attributes=attributes,
    )
    array[...] = values


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", type=pathlib.Path, default=SOURCE, help="default: %(default)s")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "storm.zarr")
    arguments = parser.parse_args()
    make_store(arguments.source, arguments.out)
    files = [path for path in arguments.out.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    print(f"{arguments.out}: {len(files)} files, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
