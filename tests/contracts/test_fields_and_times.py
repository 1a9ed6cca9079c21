"""Fields of structured values are arrays of their own, and times are int64 with a unit."""

import base64

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

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
from torchdata_insitu.errors import GeometryError, StateError
from torchdata_insitu.testing import make_store

pytestmark = QUIET_WRITERS


@pytest.mark.parametrize("zarr_format, order", WRITERS)
@pytest.mark.parametrize("field", ["u", "flag", "t", "n"])
def test_a_field_of_structured_values_is_an_array(field, zarr_format, order):
    store, _ = structured(zarr_format, order)
    for name in LAYOUTS:
        delete(store, f"{name}/c/1/0/0" if zarr_format == 3 else f"{name}/1.0.0")
    for name, got in read(store, field=field).items():
        assert_same_bits(got, zarr.open_array(store, path=name, mode="r")[...][field])


def test_the_older_spelling_of_structured_values_is_read():
    values = np.array([(1.5, 3), (2.5, 4)], [("u", "f4"), ("v", "i2")])
    store = written(values, {"t": (2,)}, 3)
    older = {"name": "structured", "configuration": {"fields": [["u", "float32"], ["v", "int16"]]}}
    rewrite(store, "t", data_type=older, fill_value=base64.b64encode(bytes(6)).decode())
    assert read(store, field="u")["t"].tolist() == [1.5, 2.5]
    assert read(store, field="v")["t"].tolist() == [3, 4]


def test_two_fields_of_one_array_are_views_of_one_loader():
    store, values = structured(3)
    u, n = (tdi.open_arrays(store, "tiled", field=field)["tiled"] for field in ("u", "n"))
    views = {"u": u.window(-1, 0), "n": n, "t": tdi.open_arrays(store, "tiled", field="t")["tiled"]}
    with tdi.build_loader(store, views, batch_size=3, budget_bytes=PLENTY) as loader:
        assert loader.units == {"t": "s"}
        assert "tiled#0: field 'u' float32 (11, 4, 6)" in tdi.describe(loader)
        for batch in loader:
            anchors = batch["sample_index"].numpy()
            assert_same_bits(batch["u"].numpy(), values["u"][anchors[:, None] + [-1, 0]])
            assert_same_bits(batch["n"].numpy(), values["n"][anchors])
            assert_same_bits(batch["t"].numpy(), values["t"][anchors])


def test_a_field_may_be_cast():
    store, values = structured(2, ">")
    got = read(store, "whole", field="flag", dtype="float16")["whole"]
    np.testing.assert_array_equal(got, values["flag"].astype("f2"), strict=True)


def test_casts_and_fields_inside_shards():
    _, values = structured(3)
    store = written(values, {"t": (3, 2, 3)}, 3, ">", shards=(6, 4, 6))
    for field, dtype in (("u", None), ("t", None), ("flag", "f2"), ("n", "f8")):
        got = read(store, field=field, dtype=dtype)["t"]
        expected = values[field] if dtype is None else values[field].astype(dtype)
        assert_same_bits(got, expected)


@pytest.mark.parametrize(
    "zarr_format, fill_value", [(2, "NaT"), (2, 7), (2, None), (3, "NaT"), (3, 7)]
)
def test_missing_chunks_of_times_are_what_zarr_fills(zarr_format, fill_value):
    store = written(all_bits("M8[ns]", (4, 3)), {"t": (2, 3)}, zarr_format)
    delete(store, "t/c/1/0" if zarr_format == 3 else "t/1.0")
    rewrite(store, "t", fill_value=fill_value)
    assert_same_bits(read(store)["t"], zarr.open_array(store, path="t", mode="r")[...])


def test_a_state_of_another_field_dtype_or_unit_is_refused():
    store, _ = structured(3)
    written(all_bits("M8[s]", SHAPE), {"times": (3, 4, 6)}, 3, store=store)
    other, _ = structured(3)
    written(all_bits("M8[ms]", SHAPE), {"times": (3, 4, 6)}, 3, store=other)
    spans = written(all_bits("m8[s]", SHAPE), {"times": (3, 4, 6)}, 3)
    numbers = written(all_bits("i8", SHAPE), {"times": (3, 4, 6)}, 3)
    ways = [
        (store, "whole", {"field": "u"}),
        (store, "whole", {"field": "u", "dtype": "f8"}),
        (store, "whole", {"field": "flag", "dtype": "f4"}),
        (store, "whole", {"field": "n"}),
        (store, "whole", {"field": "t"}),
        (store, "times", {}),
        (other, "times", {}),
        (spans, "times", {}),
        (numbers, "times", {}),
    ]

    def loader(way):
        arrays = tdi.open_arrays(way[0], way[1], **way[2])
        views = {"x": next(iter(arrays.values()))}
        return tdi.build_loader(way[0], views, batch_size=3, budget_bytes=PLENTY)

    states = []
    for way in ways:
        with loader(way) as made:
            next(iter(made))
            states.append(made.state_dict())
    for number, way in enumerate(ways):
        for saved, state in enumerate(states):
            with loader(way) as made:
                if saved == number:
                    made.load_state_dict(state)
                    assert made.position == 3
                else:
                    with pytest.raises(StateError, match="arrays"):
                        made.load_state_dict(state)


def test_units_are_known_by_view():
    store = written(all_bits("M8[ns]"), {"valid": (3, 4, 6)}, 3)
    written(all_bits("m8[10s]"), {"lead": (3, 4, 6)}, 3, store=store)
    written(np.ones(SHAPE, "f4"), {"t": (3, 4, 6)}, 3, store=store)
    arrays = tdi.open_arrays(store)
    assert {name: array.unit for name, array in arrays.items()} == {
        "lead": "10s", "t": None, "valid": "ns",
    }  # fmt: skip
    views = {"x": arrays["t"], "when": arrays["valid"].window(0, 1), "how long": arrays["lead"]}
    with tdi.build_loader(store, views, batch_size=2, budget_bytes=PLENTY) as loader:
        assert loader.units == {"when": "ns", "how long": "10s"}
        text = tdi.describe(loader)
        assert "valid: datetime64[ns] -> int64 in ns (11, 4, 6)" in text
        assert "\narrays   t: float32 (11, 4, 6)" in text
    with pytest.raises(GeometryError, match="time unit 10s against ns"):
        tdi.stack(arrays["lead"], arrays["valid"])


def test_units_of_a_mix_are_by_view_and_by_source_where_they_differ():
    def gather(**units):
        store, arrays = MemoryStore(), {}
        for name, dtype in units.items():
            written(all_bits(dtype), {name: (3, 4, 6)}, 3, store=store)
            arrays[name] = tdi.open_arrays(store, name)[name]
        pool = tdi.ChunkPool(PLENTY)
        planner = tdi.ChunkPlanner(arrays, batch_size=2)
        return tdi.GatherNode(tdi.ChunkPoolNode(tdi.AsyncChunkFetcher(planner, store, pool), pool))

    one = gather(same="M8[ns]", other="M8[s]", half="m8[s]")
    two = gather(same="M8[ns]", other="M8[D]", half="i8")
    with tdi.InSituLoader(tdi.MixNode({"a": one, "b": two}, {"a": 1, "b": 1})) as loader:
        expected = {"same": "ns", "a/other": "s", "b/other": "D", "a/half": "s"}
        assert loader.units == expected


def test_numbers_of_days_stay_numbers():
    """CF times are numbers with an attribute, and are decoded by nobody here."""
    attributes = {"t": {"units": "days since 2000-01-01", "calendar": "noleap"}}
    store = make_store({"t": (6,)}, chunks=(2,), dtype="i4", attributes=attributes)
    array = tdi.open_arrays(store)["t"]
    assert (array.unit, array.dtype) == (None, np.dtype("i4"))
    assert read(store)["t"].tolist() == list(range(6))
