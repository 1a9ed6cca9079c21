"""What other programs wrote reads as plain Zarr reads it, or is refused by its name."""

import contextlib
import hashlib
import json
import math
import re
import warnings

import numpy as np
import pytest
import xarray as xr

import torchdata_insitu as tdi
from tests.contracts.foreign_stores import (
    DATA,
    FOLDERS,
    foreign,
    foreign_arrays,
    foreign_stores,
    matching,
    open_array,
    zarr_store,
    zarr_values,
    zip_files_open,
)
from tests.contracts.foreign_tables import (
    COORDINATES,
    EMPTY,
    N_BATCHES,
    PLENTY,
    READ,
    REFUSED,
    check_bits,
    each,
    folder_of,
    rows,
    says,
    store_of,
)
from tests.contracts.zarr_oracle import ZarrOracle, check_batches
from torchdata_insitu.errors import GeometryError, InSituError, ReadError

MOST_VALUES = 1_000_000

pytestmark = pytest.mark.skipif(
    not DATA.is_dir(),
    reason="files of other writers are not here: no folder ../shared/data beside the clone",
)


@pytest.fixture(scope="module", autouse=True)
def zip_files():
    with zip_files_open():
        yield


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_array_is_found(folder):
    folder_of(folder)
    assert len(foreign_arrays(folder)) == FOLDERS[folder]


def test_the_tables_name_every_array_they_mean_once():
    for folder in FOLDERS:
        folder_of(folder)
    table = (*REFUSED, *EMPTY)
    assert {row: len(matching(row.pattern)) for row in table} == {row: row.n for row in table}
    assert len(set(rows(table))) == len(rows(table))


@pytest.mark.parametrize("array", each(matching("*/*64[[]*[]].zarr") + matching("*/meta/date")))
def test_numbers_of_time_come_with_their_unit(array):
    unit, scale = np.datetime_data(open_array(array).dtype)
    opened = tdi.open_arrays(store_of(array), [array.name])
    views = {"x": opened[array.name].shift(1)}
    with tdi.build_loader(store_of(array), views, batch_size=2, budget_bytes=PLENTY) as loader:
        assert loader.units == {"x": unit if scale == 1 else f"{scale}{unit}"}


@pytest.mark.parametrize("array", each(rows(REFUSED)))
def test_what_no_tensor_holds_is_refused_by_name(array):
    with pytest.raises(GeometryError, match=says(array, REFUSED)) as caught:
        tdi.open_arrays(store_of(array), [array.name])
    assert repr(array.name) in str(caught.value)


@pytest.mark.parametrize("array", each(rows(EMPTY)))
def test_an_array_without_chunks_is_refused_by_name_unless_told_to_fill(array):
    opened = tdi.open_arrays(store_of(array), [array.name], decode_cf=False)
    options = {"budget_bytes": PLENTY, "batch_size": max(1, array.shape[0] // N_BATCHES)}
    with tdi.build_loader(store_of(array), opened, **options) as loader:
        with pytest.raises(ReadError, match=says(array, EMPTY)) as caught:
            next(iter(loader))
        assert repr(array.name) in str(caught.value)
    expected = zarr_values(array)
    n_seen = 0
    with tdi.build_loader(store_of(array), opened, on_missing="fill", **options) as loader:
        planned = loader.plan.reads()
        for batch in loader:
            ids = batch["sample_index"].numpy()
            n_seen += len(ids)
            check_bits(batch[array.name].numpy(), expected[ids])
        stats = loader.stats()
    assert n_seen == len(expected)
    assert stats.reads == planned == stats.missing == {array.name: array.n_absent()}


@pytest.mark.parametrize(
    "store",
    [
        pytest.param(store, id=store.relative_to(DATA).as_posix())
        for folder in FOLDERS
        for store in foreign_stores(folder)
    ]
    or [None],
)
def test_a_whole_store_opens_with_all_that_can_be_drawn(store):
    left_out = {*rows(REFUSED), *(array for name in COORDINATES for array in matching(name))}
    expected = [
        array.name
        for array in foreign_arrays()
        if array.store == store and array not in left_out and array.is_below_groups()
    ]
    if store.suffix != ".zip":
        check_whole(store, expected)
        return
    with contextlib.closing(tdi.open_store(store)) as there:
        check_whole(there, expected)


def check_whole(store, expected):
    if expected:
        assert list(tdi.open_arrays(store)) == sorted(expected)
    else:
        with pytest.raises(InSituError):
            tdi.open_arrays(store)


def manifest():
    path = DATA / "foreign-writers" / "MANIFEST.json"
    entries = json.loads(path.read_text()) if path.exists() else []
    return {f"foreign-writers/{entry['path']}": entry for entry in entries}


def test_the_manifest_names_every_array_of_its_folder():
    folder_of("foreign-writers")
    assert {array.id for array in foreign_arrays("foreign-writers")} == set(manifest())


@pytest.mark.parametrize("array", each(array for array in READ if array.id in manifest()))
def test_bytes_have_the_hash_of_what_was_written(array):
    opened = tdi.open_arrays(store_of(array), [array.name], decode_cf=False)[array.name]
    options = {"batch_size": 5, "shuffle": False, "budget_bytes": PLENTY}
    found = hashlib.sha256()
    with tdi.build_loader(store_of(array), {"x": opened}, **options) as loader:
        for batch in loader:
            values = batch["x"].numpy()
            found.update(values.astype(values.dtype.newbyteorder("<")).tobytes())
    assert found.hexdigest() == manifest()[array.id]["sha256_le_c"]


@pytest.mark.parametrize(
    "array",
    each(
        array
        for array in (*READ, *rows(EMPTY))
        if array.path and array.dimension_names and math.prod(array.shape) < MOST_VALUES
    ),
)
def test_physical_values_are_those_of_xarray(array):
    group, _, name = array.path.rpartition("/")
    store = zarr_store(array.store)
    options = {"consolidated": False, "chunks": None, "decode_times": False}
    # Images of one group may differ in size along axes of one name.
    options["drop_variables"] = array.siblings()
    with warnings.catch_warnings():
        # Of a dimension that comes twice in one array.
        warnings.filterwarnings("ignore", "Duplicate dimension names", UserWarning)
        with xr.open_dataset(store, engine="zarr", group=group, **options) as dataset:
            expected = dataset.variables[name].values
    opened = tdi.open_arrays(store_of(array), [array.name])
    options = {"batch_size": max(1, array.shape[0] // N_BATCHES), "on_missing": "fill"}
    with tdi.build_loader(store_of(array), opened, budget_bytes=PLENTY, **options) as loader:
        for batch in loader:
            check_bits(batch[array.name].numpy(), expected[batch["sample_index"].numpy()])


OLCI = "s3-olci-xcube/cube-1-250-250.level1.zarr"


def test_sparse_chunks_of_a_satellite_cube_are_counted():
    store = folder_of(OLCI)
    names = ["c2rcc_flags", "conc_chl", "conc_tsm", "kd489", "quality_flags"]
    arrays = {name: foreign(f"{OLCI}/{name}") for name in names}
    opened = tdi.open_arrays(store)
    assert list(opened) == names
    n_absent = {name: array.n_absent() for name, array in arrays.items()}
    n_nan = n_values = 0
    with tdi.build_loader(store, opened, batch_size=2, budget_bytes=2 * PLENTY) as loader:
        check_batches(loader, ZarrOracle(zarr_store(store), dict.fromkeys(names, 0)))
        stats = loader.stats()
        for batch in loader:
            n_nan += sum(int(batch[name].isnan().sum()) for name in names)
            n_values += sum(batch[name].numel() for name in names)
    assert stats.missing == n_absent
    assert sum(stats.missing.values()) == 90
    assert stats.reads == dict.fromkeys(names, 40)
    assert 0.8 < n_nan / n_values < 0.9


@pytest.mark.parametrize(
    "path, axes",
    [
        ("ome-tubhiswt-5d/tubhiswt4D_sub.zarr", {"0": 0, "labels/embryo/0": 0}),
        ("ome-tubhiswt-5d/tubhiswt4D_sub.zarr", {"2": -1, "labels/embryo/2": -1}),
        ("ome-tubhiswt-5d/tubhiswt4D_sub.zarr", {"1": 2, "labels/embryo/1": 1}),
        ("idr-6001240-ngff05/6001240_labels_v0.5.zarr", {"2": 1, "labels/0/2": 1}),
    ],
    ids=["t", "x", "z", "z of shards larger than the array"],
)
def test_an_image_and_its_labels_are_cut_alike(path, axes):
    store = folder_of(path)
    arrays = tdi.open_arrays(store, list(axes), sample_axis=axes)
    with tdi.build_loader(store, arrays, batch_size=4, budget_bytes=PLENTY) as loader:
        planned = loader.plan.reads()
        check_batches(loader, ZarrOracle(zarr_store(store), axes))
        assert loader.stats().reads == planned


def test_a_dimension_name_is_an_axis_of_each_array():
    store = folder_of("idr-6001240-ngff05/6001240_labels_v0.5.zarr")
    arrays = tdi.open_arrays(store, ["2", "labels/0/2"], sample_axis="z")
    assert {array.n_samples for array in arrays.values()} == {236}
    assert {array.sample_axis for array in arrays.values()} == {1}


def test_shards_with_the_index_first_and_last_hold_the_same():
    folder = folder_of("conformance-thirdparty/zarr-java-testdata/sharding_index_location")
    stores = {name: folder / name for name in ("start", "end")}
    views = {name: tdi.open_arrays(store, store=name)["data"] for name, store in stores.items()}
    with tdi.build_loader(stores, views, batch_size=5, budget_bytes=PLENTY) as loader:
        n_seen = 0
        for batch in loader:
            n_seen += len(batch["sample_index"])
            check_bits(batch["start"].numpy(), batch["end"].numpy())
            assert batch["start"].any()
    assert n_seen == 16


@pytest.mark.parametrize("names", [None, "root/raw", "root/blosc/lz4"])
def test_the_withdrawn_draft_of_format_3_is_refused(names):
    store = folder_of("conformance-thirdparty/zarrita-py-v3draft")
    url = "https://purl.org/zarr/spec/protocol/core/3.0"
    with pytest.raises(GeometryError, match=re.escape(url)):
        tdi.open_arrays(store, names)
