"""Every batch equals plain `zarr.open_array(...)[...]` at its anchors."""

import shutil

import numpy as np
import obstore
import pytest
import xarray
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.core.sync import sync

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY, counted
from tests.contracts.packed_stores import packed_store
from tests.contracts.zarr_oracle import ZarrOracle, check_batches, check_tensor
from torchdata_insitu.testing import make_store

# Uneven last chunks on every axis, tiled fields.
SHAPE, CHUNKS = (37, 5, 7), (5, 2, 3)


def check(store, views, axes, **options):
    oracle = ZarrOracle(store, axes)
    options = {"batch_size": 4, "block_chunks": 2, "budget_bytes": PLENTY, **options}
    with tdi.build_loader(store, views, **options) as loader:
        check_batches(loader, oracle)


@pytest.mark.parametrize("codec", ["none", "zstd", "blosc", "gzip"])
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("place", ["memory", "folder"])
def test_formats_and_codecs(zarr_format, codec, place, tmp_path):
    path = None if place == "memory" else tmp_path / "store.zarr"
    options = {"zarr_format": zarr_format, "codec": codec, "path": path}
    store = make_store({"t": SHAPE, "u": SHAPE}, chunks={"t": CHUNKS, "u": (4, 5, 7)}, **options)
    t, u = tdi.open_arrays(store).values()
    views = {"x": tdi.stack(t, u).window(-1, 0), "y": u.shift(2)}
    where = store if path is None else str(path)
    check(where, views, {"t": 0, "u": 0})


@pytest.mark.parametrize("place", ["object store", "zip"])
def test_other_stores(place, tmp_path):
    folder = tmp_path / "store.zarr"
    make_store({"t": counted(SHAPE)}, chunks=CHUNKS, path=folder)
    if place == "zip":
        store = tdi.open_store(shutil.make_archive(str(tmp_path / "store"), "zip", folder))
    else:
        store = tdi.open_store(obstore.store.LocalStore(folder))
    check(store, {"x": tdi.open_arrays(store)["t"].window(-1, 0)}, {"t": 0})
    store.close()


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, "time"])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_sample_axis_by_number_and_name(axis, codec):
    dims = ("level", "time", "lat")
    store = make_store({"t": SHAPE}, chunks=CHUNKS, dims=dims, codec=codec)
    t = tdi.open_arrays(store, sample_axis=axis)["t"]
    number = 1 if axis == "time" else axis
    check(store, {"x": t.window(0, 1)}, {"t": number})


def test_sample_axis_by_array():
    arrays = {"t": counted((9, 4, 3)), "u": counted((2, 9), first=1000)}
    store = make_store(arrays, chunks={"t": (4, 4, 2), "u": (1, 2)})
    t, u = tdi.open_arrays(store, sample_axis={"u": 1}).values()
    check(store, {"x": t, "y": u.window(-2, 1)}, {"t": 0, "u": 1})


@pytest.mark.parametrize("chunks", [(1, 30), (7, 10)])
@pytest.mark.parametrize("shuffle", [True, False])
def test_arrays_of_other_chunks_fields_and_types(chunks, shuffle):
    arrays = {
        "hourly": counted((75, 3), "int16"),
        "daily": counted((75, 2, 5), "float64", first=10**6),
        "flags": counted((75,)) % 3 == 0,
    }
    steps = {"hourly": (chunks[0], 2), "daily": (chunks[1], 2, 3), "flags": (11,)}
    store = make_store(arrays, chunks=steps)
    opened = tdi.open_arrays(store)
    views = {
        "x": opened["hourly"].window(-3, 0, 8),
        "y": opened["daily"].shift(1),
        "ok": opened["flags"],
    }
    check(store, views, dict.fromkeys(arrays, 0), shuffle=shuffle)


def test_windows_reach_far_and_back_and_repeat():
    store = make_store({"t": (50, 2)}, chunks=(4, 2))
    t = tdi.open_arrays(store)["t"]
    views = {"x": t.window(-20, -1, 0, 0, 13), "y": t.shift(-7), "z": t.window(2)}
    check(store, views, {"t": 0}, lanes=3)


def test_stack_of_arrays_with_other_chunks():
    shapes = {"t": (30, 4), "u": (30, 4), "v": (30, 4)}
    store = make_store(shapes, chunks={"t": (3, 4), "u": (7, 1), "v": (30, 3)}, codec="blosc")
    t, u, v = tdi.open_arrays(store).values()
    check(
        store,
        {"x": tdi.stack(v, t, u, t), "y": tdi.stack(u, v).window(1, -1)},
        dict.fromkeys(shapes, 0),
    )


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("shape", [(1, 3), (3, 3), (7, 1)])
def test_chunk_larger_than_the_array_and_one_sample(shape, codec):
    store = make_store({"t": shape}, chunks=(8, 8), codec=codec)
    check(store, {"x": tdi.open_arrays(store)["t"]}, {"t": 0})


@pytest.mark.parametrize(
    "dtype",
    ["bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"],
)
def test_every_type_that_a_tensor_holds(dtype):
    values = counted((10, 3)) % 2 == 0 if dtype == "bool" else counted((10, 3), dtype)
    store = make_store({"t": values}, chunks=(4, 2))
    check(store, {"x": tdi.open_arrays(store)["t"].window(0, 1)}, {"t": 0})


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", [">f4", ">i2", ">c8"])
def test_big_endian_comes_native(zarr_format, dtype):
    store = make_store({"t": counted((10, 3), dtype)}, chunks=(4, 2), zarr_format=zarr_format)
    check(store, {"x": tdi.open_arrays(store)["t"]}, {"t": 0})


def test_fortran_order():
    store = make_store({"t": SHAPE}, chunks=CHUNKS, zarr_format=2, order="F")
    check(store, {"x": tdi.open_arrays(store, sample_axis=1)["t"]}, {"t": 1})


@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_chunk_keys_with_either_separator(zarr_format, separator):
    encoding = {"name": "v2" if zarr_format == 2 else "default", "separator": separator}
    store = make_store(
        {"t": SHAPE}, chunks=CHUNKS, zarr_format=zarr_format, chunk_key_encoding=encoding
    )
    check(store, {"x": tdi.open_arrays(store)["t"]}, {"t": 0})


def test_nested_arrays_and_a_root_array():
    store = zarr.storage.MemoryStore()
    group = zarr.create_group(store, path="a/b")
    group.create_array("t", shape=(9, 2), chunks=(2, 2), dtype="f4")[...] = counted((9, 2))
    check(store, {"x": tdi.open_arrays(store)["a/b/t"]}, {"a/b/t": 0})
    root = zarr.storage.MemoryStore()
    zarr.create_array(root, shape=(9, 2), chunks=(2, 2), dtype="f4")[...] = counted((9, 2))
    check(root, {"x": tdi.open_arrays(root)["data"]}, {"": 0})


@pytest.mark.parametrize(
    "zarr_format, fill_value", [(3, 0), (3, -9), (3, float("nan")), (2, -9), (2, None)]
)
def test_missing_chunks_are_the_fill_value(zarr_format, fill_value):
    store = make_store({"t": SHAPE}, chunks=CHUNKS, zarr_format=zarr_format, fill_value=fill_value)
    keys = [key for key in stored_keys(store) if "/" in key and not key.endswith(METADATA)]
    removed = keys[1::3]
    for key in removed:
        sync(store.delete(key))
    view = tdi.open_arrays(store)["t"]
    oracle = ZarrOracle(store, {"t": 0})
    with tdi.build_loader(store, {"x": view}, batch_size=4, budget_bytes=PLENTY) as loader:
        check_batches(loader, oracle)
        assert loader.stats().missing == {"t": len(removed)}


METADATA = ("zarr.json", ".zarray", ".zattrs", ".zgroup")


def stored_keys(store):
    async def keys():
        return [key async for key in store.list()]

    return sorted(sync(keys()))


PACKINGS = {
    "scale and offset": {"scale_factor": 0.01, "add_offset": 273.15},
    "scale": {"scale_factor": 0.5},
    "offset": {"add_offset": np.float32(-7).item()},
    "fill": {"_FillValue": 3},
    "fill, missing, scale": {"_FillValue": 3, "missing_value": 8, "scale_factor": 0.1},
}


@pytest.mark.filterwarnings("ignore:.*multiple fill values")
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("dtype", ["i2", "u1", "f4"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_packed_arrays_as_xarray_decodes_them(packing, dtype, zarr_format):
    store = packed_store(dtype, PACKINGS[packing], zarr_format)
    dataset = xarray.open_zarr(store, consolidated=False, zarr_format=zarr_format, chunks=None)
    expected = dataset["t"].values
    t = tdi.open_arrays(store)["t"]
    with tdi.build_loader(
        store, {"x": t.window(0, 1)}, batch_size=4, budget_bytes=PLENTY
    ) as loader:
        for batch in loader:
            anchors = batch["sample_index"].numpy()
            check_tensor(batch["x"], expected[anchors[:, None] + [0, 1]])


def test_stores_by_label():
    era5 = make_store({"t": counted((23, 3))}, chunks=(4, 3))
    rain = make_store({"t": counted((23, 3), first=1000)}, chunks=(6, 2))
    views = {
        "x": tdi.open_arrays(era5, store="era5")["t"].window(-1, 0),
        "y": tdi.open_arrays(rain, store="rain")["t"],
    }
    views["both"] = tdi.stack(views["y"], tdi.open_arrays(era5, store="era5")["t"])
    values = [zarr.open_array(store, path="t")[...] for store in (era5, rain)]
    stores = {"era5": era5, "rain": rain}
    with tdi.build_loader(stores, views, batch_size=5, budget_bytes=PLENTY) as loader:
        for batch in loader:
            anchors = batch["sample_index"].numpy()
            check_tensor(batch["x"], values[0][anchors[:, None] + [-1, 0]])
            check_tensor(batch["y"], values[1][anchors])
            check_tensor(batch["both"], np.stack([values[1][anchors], values[0][anchors]], axis=1))


def test_loaders_with_other_views_in_one_pool():
    """The arrays of a stack then lie in memory that was reserved at different times."""
    shapes = {"t": (30, 4), "u": (30, 4)}
    store = make_store(shapes, chunks={"t": (3, 4), "u": (5, 2)})
    t, u = tdi.open_arrays(store).values()
    oracle = ZarrOracle(store, dict.fromkeys(shapes, 0))
    pool = tdi.ChunkPool(PLENTY)
    for views in ({"x": u}, {"x": tdi.stack(t, u).window(-1, 1)}, {"x": t, "y": u.shift(-2)}):
        with tdi.build_loader(store, views, batch_size=4, pool=pool) as loader:
            check_batches(loader, oracle)


@st.composite
def archives(draw):
    """Up to three arrays with equal samples on any axis, with views on them."""
    n_samples = draw(st.integers(1, 40))
    shapes, chunks, axes = {}, {}, {}
    for name in ("t", "u", "v")[: draw(st.integers(1, 3))]:
        field = draw(st.lists(st.integers(1, 4), min_size=0, max_size=2))
        axis = draw(st.integers(0, len(field)))
        shapes[name] = (*field[:axis], n_samples, *field[axis:])
        chunks[name] = tuple(draw(st.integers(1, n + 2)) for n in shapes[name])
        axes[name] = axis
    reach = min(n_samples - 1, 12)
    offsets = st.lists(st.integers(-(reach // 2), reach - reach // 2), min_size=1, max_size=3)
    windows = {name: draw(offsets) for name in shapes}
    dtype = draw(st.sampled_from(["i2", "f4", "f8"]))
    options = {
        "zarr_format": draw(st.sampled_from([2, 3])),
        "codec": draw(st.sampled_from(["none", "zstd", "blosc", "gzip"])),
    }
    plan = {
        "batch_size": draw(st.integers(1, 45)),
        "block_chunks": draw(st.integers(1, 5)),
        "lanes": draw(st.integers(1, 3)),
        "shuffle": draw(st.booleans()),
        "prefetch_factor": draw(st.integers(0, 2)),
    }
    return shapes, chunks, axes, windows, dtype, options, plan


@settings(max_examples=40)
@given(archives())
def test_any_archive(archive):
    shapes, chunks, axes, windows, dtype, options, plan = archive
    # From 1 on: an array of nothing but fill values has no chunk, and is taken for a wrong path.
    values = {name: counted(shape, dtype) for name, shape in shapes.items()}
    store = make_store(values, chunks=chunks, **options)
    arrays = tdi.open_arrays(store, list(shapes), sample_axis=axes)
    views = {f"of {name}": arrays[name].window(*windows[name]) for name in shapes}
    check(store, views, axes, **plan)
