import json
import logging

import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.core.buffer import cpu

from torchdata_insitu.errors import GeometryError, InSituError, ReadError
from torchdata_insitu.geometry.metadata import read_arrays

DIMS = ("time", "lat", "lon")


def add(store, name, shape=(6, 4), dims=None, *, zarr_format=3, dtype="f4", **options):
    """Write one array with dimension names where its format has them."""
    if dims is not None and zarr_format == 2:
        options.setdefault("attributes", {})["_ARRAY_DIMENSIONS"] = list(dims)
    elif dims is not None:
        options["dimension_names"] = dims
    chunks = options.pop("chunks", tuple(max(1, n // 2) for n in shape))
    options.setdefault("fill_value", None if zarr_format == 2 else 0)
    return zarr.create_array(
        store, name=name, shape=shape, chunks=chunks, dtype=dtype, zarr_format=zarr_format,
        **options,
    )  # fmt: skip


def put(store, key, document):
    text = document if isinstance(document, str) else json.dumps(document)
    store._store_dict[key] = cpu.Buffer.from_bytes(text.encode())


def document_of(store, key):
    return json.loads(store._store_dict[key].to_bytes())


@pytest.fixture(params=[2, 3])
def climate(request):
    """A store as climate centres write them."""
    store = zarr.storage.MemoryStore()
    form = {"zarr_format": request.param}
    zarr.create_group(store, attributes={"coordinates": "height"}, **form)
    attributes = {"coordinates": "area time_of_day", "grid_mapping": "crs: lat lon"}
    add(store, "t2m", (6, 4, 5), DIMS, attributes=attributes, **form)
    add(store, "rain", (6, 4, 5), DIMS, **form)
    add(store, "time", (6,), ("time",), attributes={"bounds": "time_bnds"}, dtype="i8", **form)
    add(store, "time_bnds", (6, 2), ("time", "nv"), dtype="i8", **form)
    add(store, "lat", (4,), ("lat",), **form)
    add(store, "lon", (5,), ("lon",), **form)
    add(store, "area", (4, 5), ("lat", "lon"), **form)
    add(store, "height", (4, 5), ("lat", "lon"), **form)
    add(store, "time_of_day", (6,), ("time",), **form)
    add(store, "crs", (3,), ("parameter",), attributes={"grid_mapping_name": "x"}, **form)
    add(store, "version", (), (), **form)
    add(store, "station", (6,), ("time",), dtype="U4", fill_value="", **form)
    add(store, "runs/ens/t2m", (6, 4, 5), DIMS, **form)
    return store


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_data_arrays_are_those_xarray_takes_for_data(climate):
    arrays = read_arrays(climate)
    root = {name for name in arrays if "/" not in name}
    dataset = xr.open_dataset(
        climate, engine="zarr", consolidated=False, chunks=None, decode_coords="all"
    )
    assert root == set(dataset.data_vars) - {"version", "station"}
    assert list(arrays) == ["rain", "runs/ens/t2m", "t2m"]


def test_naming_an_array_bypasses_the_exclusions(climate):
    assert list(read_arrays(climate, ["lat", "time_bnds", "crs"])) == ["lat", "time_bnds", "crs"]


def test_names_are_one_path_or_several(climate):
    assert list(read_arrays(climate, "/runs/ens/t2m/")) == ["runs/ens/t2m"]
    assert list(read_arrays(climate, ("t2m", "rain", "t2m"))) == ["t2m", "rain"]
    assert read_arrays(climate, "t2m")["t2m"].path == "t2m"


@pytest.mark.parametrize("names", [[], [3], (None,)])
def test_names_that_are_no_paths_are_refused(climate, names):
    with pytest.raises(GeometryError, match="names is a path or a sequence of paths"):
        read_arrays(climate, names)


def test_an_array_that_is_not_there_is_named_with_what_there_is(climate):
    with pytest.raises(GeometryError, match="no array 'T2M' in the store; it has 't2m'") as caught:
        read_arrays(climate, ["rain", "T2M"])
    assert "'runs/ens/t2m'" in str(caught.value)
    assert "'lat'" in str(caught.value)


def test_a_group_is_no_array_and_shows_what_is_in_it(climate):
    with pytest.raises(GeometryError, match="'runs' is a group, not an array; it has 'runs/ens/t2"):
        read_arrays(climate, "runs")


@pytest.mark.parametrize("key", [".zarray", "zarr.json"])
def test_a_store_that_is_one_array_opens_as_data(key):
    store = zarr.storage.MemoryStore()
    add(store, None, dims=("time", "x"), zarr_format=2 if key == ".zarray" else 3)
    for names in (None, "data", ["data"], ""):
        array = read_arrays(store, names)["data"]
        assert (array.name, array.path, array.shape) == ("data", "", (6, 4))
    with pytest.raises(GeometryError, match="no array 't2m': the store is one array, opened as"):
        read_arrays(store, "t2m")


@pytest.mark.parametrize("names", [None, "t2m"])
def test_a_store_without_zarr_metadata_says_what_was_looked_for(names):
    store = zarr.storage.MemoryStore()
    put(store, "README", "not Zarr")
    with pytest.raises(ReadError, match=r"no Zarr metadata .* looked for zarr.json, .zarray and"):
        read_arrays(store, names)


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_stale_consolidated_metadata_is_not_believed(zarr_format):
    store = zarr.storage.MemoryStore()
    zarr.create_group(store, zarr_format=zarr_format)
    for name in ("grown", "changed", "gone"):
        add(store, name, zarr_format=zarr_format)
    zarr.consolidate_metadata(store, zarr_format=zarr_format)
    zarr.open_array(store, path="grown").resize((10, 4))
    zarr.open_array(store, path="changed").attrs["scale_factor"] = 0.5
    for key in [key for key in store._store_dict if key.startswith("gone/")]:
        del store._store_dict[key]
    add(store, "new", zarr_format=zarr_format)

    arrays = read_arrays(store)

    assert list(arrays) == ["changed", "grown", "new"]
    assert arrays["grown"].n_samples == 10
    assert arrays["changed"].dtype == np.float64


def test_a_store_that_cannot_be_listed_is_opened_by_name_or_by_consolidated_metadata():
    class Unlistable(zarr.storage.MemoryStore):
        def list_dir(self, prefix):
            raise NotImplementedError

    store = Unlistable()
    zarr.create_group(store)
    add(store, "runs/t2m")
    assert list(read_arrays(store, "runs/t2m")) == ["runs/t2m"]
    with pytest.raises(ReadError, match=r"cannot be listed \(NotImplementedError\): name the arr"):
        read_arrays(store)
    with pytest.raises(GeometryError, match=r"no array 't2m' in the store .*cannot be listed"):
        read_arrays(store, "t2m")
    group = document_of(store, "zarr.json")
    array = document_of(store, "runs/t2m/zarr.json")
    put(store, "zarr.json", {**group, "consolidated_metadata": {"metadata": {"runs/t2m": array}}})
    assert list(read_arrays(store)) == ["runs/t2m"]


def broken_documents():
    """Documents of arrays that cannot be opened, and a fact that their error states."""
    store = zarr.storage.MemoryStore()
    good = document_of(add(store, "a").store_path.store, "a/zarr.json")
    codec = {"name": "no_such_codec", "configuration": {}}
    return {
        "not_json": ("{", "not JSON"),
        "a_list": ("[1]", "no JSON object"),
        "no_shape": ({**good, "shape": None}, "shape None"),
        "no_fill": ({name: good[name] for name in good if name != "fill_value"}, "is missing"),
        "bad_fill": ({**good, "fill_value": "x"}, "fill_value is 'x'"),
        "unknown_codec": ({**good, "codecs": [*good["codecs"], codec]}, "no_such_codec"),
        "unknown_dtype": ({**good, "data_type": "bfloat16"}, "'bfloat16'"),
        "old_format": ({**good, "zarr_format": 1}, "zarr_format 1"),
        "wrong_node": ({**good, "node_type": "thing"}, "thing"),
        "transformed": ({**good, "storage_transformers": [{"name": "x"}]}, "transformers"),
    }


@pytest.mark.parametrize("name", broken_documents())
def test_a_broken_array_is_refused_by_name_and_does_no_harm_elsewhere(name, caplog):
    store = zarr.storage.MemoryStore()
    zarr.create_group(store)
    add(store, "good")
    document, fact = broken_documents()[name]
    put(store, f"{name}/zarr.json", document)
    with caplog.at_level(logging.INFO, "torchdata_insitu"):
        assert list(read_arrays(store)) == ["good"]
    assert name in caplog.text
    with pytest.raises(GeometryError, match=fact) as caught:
        read_arrays(store, name)
    assert name in str(caught.value)


def test_an_unknown_codec_of_format_2_does_no_harm_elsewhere():
    store = zarr.storage.MemoryStore()
    zarr.create_group(store, zarr_format=2)
    add(store, "good", zarr_format=2)
    document = document_of(store, "good/.zarray")
    put(store, "bad/.zarray", {**document, "compressor": {"id": "no_such_codec"}})
    assert list(read_arrays(store)) == ["good"]
    with pytest.raises(GeometryError, match=r"array 'bad' of dtype <f4 .*no_such_codec"):
        read_arrays(store, "bad")


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize(
    "dtype, advice",
    [
        ("U4", "integer codes"),
        ("S4", "integer codes"),
        ("V4", "bytes of a meaning of their own"),
    ],
)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_dtype_without_tensor_is_left_out_and_refused_with_advice(zarr_format, dtype, advice):
    store = zarr.storage.MemoryStore()
    zarr.create_group(store, zarr_format=zarr_format)
    add(store, "good", zarr_format=zarr_format)
    zarr.create_array(
        store, name="odd", shape=(6,), chunks=(2,), dtype=dtype, zarr_format=zarr_format
    )
    assert list(read_arrays(store)) == ["good"]
    with pytest.raises(GeometryError, match=r"array 'odd' has dtype .*" + advice):
        read_arrays(store, "odd")


def test_the_stored_chunk_of_a_sharded_array_is_the_inner_one():
    store = zarr.storage.MemoryStore()
    zarr.create_group(store)
    add(store, "sharded", chunks=(1, 4), shards=(3, 4))
    assert read_arrays(store)["sharded"].stored_chunk_shape == (1, 4)


def test_a_scalar_is_refused_when_named(climate):
    with pytest.raises(GeometryError, match="'version' is a scalar"):
        read_arrays(climate, "version")


def test_an_error_lists_what_was_left_out_where_nothing_remains():
    store = zarr.storage.MemoryStore()
    zarr.create_group(store)
    with pytest.raises(GeometryError, match="left out: nothing"):
        read_arrays(store)
    add(store, "lat", (4,), ("lat",))
    add(store, "mask", (4, 5), ("lat", "lon"))
    with pytest.raises(GeometryError, match=r"'lat' \(a coordinate.*'mask' \(.*'time'"):
        read_arrays(store, sample_axis="time")


def test_big_endian_is_stored_and_native_is_delivered():
    store = zarr.storage.MemoryStore()
    add(store, "v3", dtype="i2", serializer=zarr.codecs.BytesCodec(endian="big"))
    add(store, "v2", dtype=">i2", zarr_format=2)
    for array in read_arrays(store, ["v2", "v3"]).values():
        assert (array.stored_dtype, array.dtype) == (np.dtype(">i2"), np.dtype("=i2"))


def test_sample_axis_is_given_for_all_arrays_or_by_array(climate):
    arrays = read_arrays(climate, ["t2m", "rain"], sample_axis={"t2m": "lat"})
    assert [array.sample_axis for array in arrays.values()] == [1, 0]
    arrays = read_arrays(climate, ["t2m", "rain"], sample_axis="lon")
    assert [array.n_samples for array in arrays.values()] == [5, 5]
    assert read_arrays(climate, "t2m", sample_axis=-1)["t2m"].sample_axis == 2


def test_arrays_without_the_sample_axis_are_left_out_unless_they_are_asked_for():
    store = zarr.storage.MemoryStore()
    zarr.create_group(store)
    add(store, "t2m", (6, 4), ("time", "lat"))
    add(store, "mask", (4, 5), ("lat", "lon"))
    assert list(read_arrays(store, sample_axis="time")) == ["t2m"]
    with pytest.raises(GeometryError, match="'mask' has 0 dimensions named 'time'"):
        read_arrays(store, ["t2m", "mask"], sample_axis="time")
    with pytest.raises(GeometryError, match="'mask' has 0 dimensions named 'time'"):
        read_arrays(store, sample_axis={"mask": "time"})


def test_a_sample_axis_of_an_array_that_is_not_opened_is_refused(climate):
    with pytest.raises(GeometryError, match=r"sample_axis names array 't2n', .* opened: 't2m'"):
        read_arrays(climate, "t2m", sample_axis={"t2n": 0})


def test_the_label_of_the_store_is_kept(climate):
    assert read_arrays(climate, "t2m", label="era5")["t2m"].store == "era5"
    assert read_arrays(climate, "t2m")["t2m"].store is None


def test_only_metadata_of_the_arrays_asked_for_is_read(climate):
    class Counting(zarr.storage.MemoryStore):
        keys = ()

        async def get(self, key, prototype=None, byte_range=None):
            self.keys = (*self.keys, key)
            return await super().get(key, prototype, byte_range)

    store = Counting(climate._store_dict)
    read_arrays(store, "t2m")
    assert {key.rpartition("/")[0] for key in store.keys} == {"", "t2m"}


def test_an_archive_that_is_not_open_yet_is_opened(tmp_path):
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
        add(store, "t2m")
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="r") as store:
        assert list(read_arrays(store, "t2m")) == ["t2m"]


@pytest.mark.parametrize("names", [None, "t2m"])
def test_errors_show_no_secret_of_the_store(names):
    class Secretive(zarr.storage.MemoryStore):
        def __repr__(self):
            return "Store(secret_access_key=hunter2)"

        __str__ = __repr__

        async def get(self, key, *_, **__):
            raise PermissionError(f"GET https://host/{key}?sig=hunter2")

    with pytest.raises(ReadError, match="PermissionError") as caught:
        read_arrays(Secretive(), names)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "folder, names, shapes",
    [
        (
            "s3-olci-xcube/cube-1-250-250.level1.zarr",
            ["c2rcc_flags", "conc_chl", "conc_tsm", "kd489", "quality_flags"],
            {(5, 500, 1000)},
        ),
        (
            "ome-tubhiswt-5d/tubhiswt4D_sub.zarr/labels/embryo",
            ["0", "1", "2"],
            {(3, 2, 512, 512), (3, 2, 256, 256), (3, 2, 128, 128)},
        ),
        ("foreign-writers/netcdf-c/zarr_t2m.zarr", ["t2m"], {(24, 33, 49)}),
        ("foreign-writers/z5py/v2_labels.zarr", ["labels", "t2m", "t2m_raw"], None),
        ("foreign-writers/zarrita.js/v3_transpose_blosc.zarr", ["data"], {(24, 33, 49)}),
    ],
)
def test_real_stores_open_with_the_geometry_zarr_sees(shared_data, folder, names, shapes):
    store = zarr.storage.LocalStore(shared_data / folder, read_only=True)
    arrays = read_arrays(store)
    assert list(arrays) == names
    assert shapes is None or {array.shape for array in arrays.values()} == shapes
    for array in arrays.values():
        real = zarr.open_array(store, path=array.path, mode="r")
        assert (array.shape, array.stored_chunk_shape) == (real.shape, real.chunks)
        assert array.stored_dtype == real.dtype


def test_a_real_store_decodes_as_in_xarray(shared_data):
    store = zarr.storage.LocalStore(
        shared_data / "foreign-writers/netcdf-c/zarr_t2m.zarr", read_only=True
    )
    array = read_arrays(store)["t2m"]
    stored = zarr.open_array(store, path="t2m", mode="r")[...]
    out = np.empty(array.shape, array.dtype)
    array.cf.decode(stored, out)
    dataset = xr.open_dataset(
        store, engine="zarr", consolidated=False, chunks=None, decode_times=False
    )
    assert out.tobytes() == dataset["t2m"].values.tobytes()


@pytest.mark.parametrize(
    "folder, fact",
    [
        ("foreign-writers/tensorstore/v3_bfloat16_UNSUPPORTED.zarr", "array 'data' .*'bfloat16'"),
        ("foreign-writers", "no Zarr metadata at the root"),
    ],
)
def test_real_stores_that_cannot_be_read_are_refused(shared_data, folder, fact):
    store = zarr.storage.LocalStore(shared_data / folder, read_only=True)
    with pytest.raises(InSituError, match=fact):
        read_arrays(store)


def test_arrays_that_an_option_for_all_does_not_fit_are_left_out_with_a_warning(caplog):
    store = zarr.storage.MemoryStore()
    for name, dtype in (("t2m", "f4"), ("counts", "i2")):
        zarr.create_array(store, name=name, shape=(9, 4), chunks=(2, 4), dtype=dtype)
    with caplog.at_level("WARNING"):
        assert list(read_arrays(store, dtype="int32")) == ["counts"]
    (record,) = caplog.records
    assert "'t2m'" in record.getMessage()
    assert "mapping" in record.getMessage()


def test_an_option_that_names_no_array_is_told_where_nothing_opens():
    store = zarr.storage.MemoryStore()
    for name in ("obs", "text"):
        zarr.create_array(store, name=name, shape=(9,), chunks=(2,), dtype="S3", zarr_format=2)
    with pytest.raises(GeometryError, match="'ob'"):
        read_arrays(store, field={"ob": "wind"})
