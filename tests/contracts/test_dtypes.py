"""Every dtype a tensor holds comes out of a loader bit for bit, or cast as numpy casts."""

import numpy as np
import pytest
import xarray
import zarr
from zarr.codecs import ZstdCodec
from zarr.core.buffer import cpu
from zarr.core.sync import sync
from zarr.storage import LocalStore, MemoryStore

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY
from tests.contracts.dtype_stores import (
    LAYOUTS,
    QUIET_WRITERS,
    SHAPE,
    WRITERS,
    all_bits,
    assert_same_bits,
    delete,
    read,
    rewrite,
    structured,
    written,
)
from torchdata_insitu.errors import DecodeError
from torchdata_insitu.testing import CountingStore, is_chunk, make_store

pytestmark = QUIET_WRITERS

NUMBERS = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
TIMES = ["M8[ns]", "M8[10s]", "m8[D]"]


@pytest.mark.parametrize("zarr_format, order", WRITERS)
@pytest.mark.parametrize("dtype", [*NUMBERS, *TIMES])
def test_every_dtype_bit_for_bit_as_zarr_reads_it(dtype, zarr_format, order):
    store = written(all_bits(dtype), LAYOUTS, zarr_format, order)
    for name in LAYOUTS:
        delete(store, f"{name}/c/1/0/0" if zarr_format == 3 else f"{name}/1.0.0")
    got = read(store)
    assert list(got) == sorted(LAYOUTS)
    for name, values in got.items():
        assert_same_bits(values, zarr.open_array(store, path=name, mode="r")[...])
    for axis in (1, 2):
        for name, values in read(store, sample_axis=axis).items():
            expected = zarr.open_array(store, path=name, mode="r")[...]
            assert_same_bits(values, np.moveaxis(expected, axis, 0))


@pytest.mark.parametrize("zarr_format, order", WRITERS)
@pytest.mark.parametrize("options", [{"compressors": None}, {"filters": "transpose"}])
def test_dtypes_without_compression_and_transposed(zarr_format, order, options, tmp_path):
    """In files, which are read into slots where the stored bytes are the values."""
    options = dict(options)
    if options.pop("filters", None):
        if zarr_format == 2:
            options["order"] = "F"
        else:
            options["filters"] = zarr.codecs.TransposeCodec(order=(2, 0, 1))
    elif zarr_format == 3:
        options["compressors"] = ()
    for dtype in ("f2", "c8", "i8", "M8[ns]"):
        store = LocalStore(tmp_path / dtype)
        written(all_bits(dtype), LAYOUTS, zarr_format, order, store=store, **options)
        for name, values in read(store).items():
            assert_same_bits(values, zarr.open_array(store, path=name, mode="r")[...])


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("dtype", ["?", "i2", "f4", "c8", "M8[ns]"])
def test_every_dtype_inside_shards(dtype, order):
    chunks = {"whole": (3, 4, 6), "tiled": (3, 2, 3)}
    values = all_bits(dtype)
    values[3:6] = np.zeros((), dtype)
    options = {"shards": (6, 4, 6), "fill_value": np.zeros((), dtype)[()]}
    store = written(values, chunks, 3, order, **options)
    for name in chunks:
        delete(store, f"{name}/c/1/0/0")
    for name, got in read(store).items():
        assert_same_bits(got, zarr.open_array(store, path=name, mode="r")[...])


@pytest.mark.parametrize(
    "dtype, fill_value, bits",
    [
        ("float32", "0x7fc00005", 0x7FC0_0005),
        ("float64", "0xfff8000000000003", 0xFFF8_0000_0000_0003),
        ("float32", "NaN", 0x7FC0_0000),
        ("float64", "-0.0", None),
        ("float64", "-Infinity", 0xFFF0_0000_0000_0000),
    ],
)
def test_fill_values_bit_for_bit(dtype, fill_value, bits):
    if bits is None:
        fill_value, bits = -0.0, 0x8000_0000_0000_0000
    store = written(np.ones((4, 3), dtype), {"t": (2, 3)}, 3)
    rewrite(delete(store, "t/c/1/0"), "t", fill_value=fill_value)
    got = read(store)["t"]
    assert set(got[2:].view(f"u{got.itemsize}").ravel().tolist()) == {bits}


@pytest.mark.parametrize("zarr_format, order", WRITERS)
@pytest.mark.parametrize(
    "source, targets",
    [
        ("i2", ["i4", "i8", "f2", "f4", "f8", "c8"]),
        ("u8", ["u1", "u4", "i8", "f4"]),
        ("f8", ["f2", "f4", "c8", "c16"]),
        ("c16", ["c8"]),
        ("?", ["i1", "u8", "f4", "c8"]),
    ],
)
def test_casts_are_those_of_numpy(source, targets, zarr_format, order):
    values = (np.arange(np.prod(SHAPE)) % 113).reshape(SHAPE).astype(source)
    store = written(values, LAYOUTS, zarr_format, order, fill_value=True if source == "?" else 5)
    for name in LAYOUTS:
        delete(store, f"{name}/c/0/0/0" if zarr_format == 3 else f"{name}/0.0.0")
    for target in targets:
        for name, got in read(store, dtype=target).items():
            expected = zarr.open_array(store, path=name, mode="r")[...].astype(target)
            np.testing.assert_array_equal(got, expected, strict=True)


PACKINGS = {
    "plain": {},
    "scale and offset": {"scale_factor": 0.01, "add_offset": 273.15},
    "fill and scale": {"_FillValue": 3, "scale_factor": 0.1},
    "missing": {"missing_value": 8},
}


@pytest.mark.parametrize("zarr_format, order", WRITERS)
@pytest.mark.parametrize("target", ["f2", "f4", "f8", "c8"])
@pytest.mark.parametrize("packing", PACKINGS)
def test_packed_numbers_are_cast_after_xarrays_decoding(packing, target, zarr_format, order):
    attributes = dict(PACKINGS[packing])
    dims = ("time", "y", "x")
    options = {"fill_value": attributes.pop("_FillValue", 0) if zarr_format == 2 else 0}
    if zarr_format == 2:
        attributes["_ARRAY_DIMENSIONS"] = dims
        if "_FillValue" not in PACKINGS[packing]:
            options["fill_value"] = None
    else:
        options["dimension_names"] = dims
    values = (np.arange(np.prod(SHAPE)) % 300).reshape(SHAPE).astype("i2")
    store = written(values, LAYOUTS, zarr_format, order, attributes=attributes, **options)
    for name in LAYOUTS:
        delete(store, f"{name}/c/2/0/0" if zarr_format == 3 else f"{name}/2.0.0")
    opened = xarray.open_zarr(store, consolidated=False, zarr_format=zarr_format, chunks=None)
    for name, got in read(store, dtype=target).items():
        np.testing.assert_array_equal(got, opened[name].values.astype(target), strict=True)


def error_of(store, **options):
    with pytest.raises(DecodeError) as caught:
        read(store, **options)
    return str(caught.value)


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("chunks", [(2, 3), (2, 2)])
@pytest.mark.parametrize(
    "source, target, value_shown",
    [
        ("i8", "int32", (-(2**31) - 1, "-2147483649")),
        ("u2", "int16", (40_000, "40000")),
        ("u1", "int8", (128, "128")),
        ("f8", "float32", (1e39, "1e+39")),
        ("f4", "float16", (-70_000, "-70000.0")),
        ("i4", "float16", (70_000, "70000")),
        ("c16", "complex64", (1e39j, "1e+39j")),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_that_says_which_and_where(
    source, target, value_shown, chunks, codec
):
    value, shown = value_shown
    values = np.ones((6, 3), source)
    values[5, 1] = value
    store = make_store({"t": values}, chunks=chunks, codec=codec)
    text = error_of(store, dtype=target)
    for fact in ("array 't'", "'t/c/2/0'", "chunk (2, 0)", shown, f"does not fit {target}"):
        assert fact in text
    assert "damaged" not in text
    assert (read(store)["t"] == values).all()


def test_a_value_that_does_not_fit_beyond_the_end_of_the_array_is_no_error():
    """What lies in a stored chunk past the array is no value of it."""
    store = MemoryStore()
    array = zarr.create_array(
        store, name="t", shape=(4,), chunks=(4,), dtype="i8", compressors=(), fill_value=2**40
    )
    array[...] = 1
    rewrite(store, "t", shape=[3])
    payload = np.array([1, 1, 1, 2**40], "<i8").tobytes()
    sync(store.set("t/c/0", cpu.Buffer.from_bytes(payload)))
    assert read(store, dtype="i1")["t"].tolist() == [1, 1, 1]


def test_a_fill_value_that_does_not_fit_is_an_error_where_a_chunk_is_missing():
    store = make_store({"t": np.ones((6, 3))}, chunks=(2, 3), fill_value=1e36)
    assert (read(store, dtype="f2")["t"] == 1).all()
    text = error_of(delete(store, "t/c/1/0"), dtype="f2")
    for fact in ("'t/c/1/0'", "fill value", "1e+36", "float16"):
        assert fact in text
    assert (read(store, dtype="f4")["t"][2:4] == np.float32(1e36)).all()


def test_fields_and_dtypes_of_one_array_share_a_pool_and_no_chunk():
    store = CountingStore(make_store({"t": (12, 5)}, chunks=(3, 5), dtype="f8"))
    expected = np.arange(60.0).reshape(12, 5)
    pool = tdi.ChunkPool(PLENTY)
    for dtype in (None, "f4", "f2", "c8"):
        store.gets.clear()
        got = read(store, pool=pool, dtype=dtype)["t"]
        np.testing.assert_array_equal(got, expected.astype(dtype or "f8"), strict=True)
        assert chunk_reads(store) == 4
    for dtype in (None, "f4", "f2", "c8"):
        store.gets.clear()
        got = read(store, pool=pool, dtype=dtype)["t"]
        np.testing.assert_array_equal(got, expected.astype(dtype or "f8"), strict=True)
        assert chunk_reads(store) == 0
    pool.clear()
    many, values = structured(3)
    for field in ("u", "n", "u", "n"):
        assert_same_bits(read(many, "tiled", pool=pool, field=field)["tiled"], values[field])


def chunk_reads(store):
    return sum(n for key, n in store.gets.items() if is_chunk(key))


def test_memory_is_that_of_the_dtype_asked_for():
    store = make_store({"t": (12, 5)}, chunks=(3, 5), dtype="f8")
    bytes_of = {}
    for dtype in ("f8", "f4", "f2"):
        arrays = tdi.open_arrays(store, dtype=dtype)
        with tdi.build_loader(store, arrays, batch_size=3, budget_bytes=PLENTY) as loader:
            bytes_of[dtype] = loader.floor_bytes
    assert bytes_of["f8"] == 2 * bytes_of["f4"] == 4 * bytes_of["f2"]


@pytest.mark.parametrize(
    "stored, dtype, path",
    [
        ("f4", None, "straight into the slot"),
        ("f4", "f2", "through scratch"),
        ("M8[ns]", None, "straight into the slot"),
        ("M8[ns]", "i8", "straight into the slot"),
    ],
)
def test_only_what_changes_passes_through_scratch(stored, dtype, path):
    store = written(all_bits(stored), LAYOUTS, 3, compressors=ZstdCodec())
    views = tdi.open_arrays(store, "whole", dtype=dtype)
    with tdi.build_loader(store, views, batch_size=2, budget_bytes=PLENTY) as loader:
        assert f"zstd, {path}" in tdi.describe(loader)
