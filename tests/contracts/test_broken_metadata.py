"""Documents that are damaged or invented: equal values, or an error that names the array."""

import copy
import json
import random

import numpy as np
import pytest
import zarr

import torchdata_insitu as tdi
from tests.contracts.chains import counted
from tests.contracts.documents import amend, document_of, key_of, put, read_all
from torchdata_insitu.testing import make_store

HUGE = 10**30
# A document that is valid may promise more than a test has the time to read.
MOST_CHUNKS = 10**5
DEEP = "[" * 100_000
# Bytes that stand in the place of a document, for either format.
DOCUMENTS = {
    "empty": b"",
    "blank": b" \n",
    "a list": b"[1, 2]",
    "a text": b'"zarr"',
    "a number": b"3",
    "null": b"null",
    "an empty object": b"{}",
    "not text": b"\xff\xfe\x00\xd8",
    "a page": b"<!DOCTYPE html><html>log in</html>",
    "nested too deep": DEEP.encode(),
    "a number too long": b'{"shape": [' + b"9" * 5000 + b"]}",
}
# Values that a field is given; `...` takes it out.
SHARED = {
    "zarr_format": [1, 4, "3", 2.5, None, ..., [3], True],
    "shape": [None, ..., 7, "7", [], [7], [7, 4, 2], [-7, 4], [7.5, 4], ["7", 4], [[7], 4], {}],
    "shape, huge": [[HUGE, 4], [7, HUGE], [2**63, 4], [1] * 70],
    "fill_value": ["x", [], {}, [0], {"a": 1}, HUGE, "0xzz", ...],
}
FORMAT_2 = {
    **SHARED,
    "chunks": [None, ..., 3, "3", [], [3], [3, 2, 2], [0, 2], [-3, 2], [3.5, 2], [HUGE, 2], {}],
    "dtype": [None, ..., 4, "f", "<f3", "<f99", "x", "", [], {}, [["a"]], "|O", "<U", "float32"],
    "compressor": [
        ...,
        3,
        "zstd",
        [],
        {},
        {"id": None},
        {"id": "none such"},
        {"id": "zstd", "x": 1},
    ],
    "filters": [
        ...,
        3,
        "delta",
        {},
        [],
        [3],
        [None],
        [{}],
        [{"id": "none such"}],
        [{"id": "delta"}],
    ],
    "order": [None, ..., "A", 3, "", [], "c"],
    "dimension_separator": ["_", "", 3, [], "//"],
}
FORMAT_3 = {
    **SHARED,
    "node_type": [None, ..., "thing", 3, [], "Array"],
    "data_type": [
        None,
        ...,
        4,
        "f4",
        "float31",
        "",
        [],
        {},
        {"name": "none such"},
        {"name": 3},
        "r7",
    ],
    "chunk_grid": [None, ..., 3, "regular", [], {}, {"name": "none such"}, {"name": "regular"}]
    + [
        {"name": "regular", "configuration": settings}
        for settings in (None, [], {}, {"chunk_shape": None}, {"chunk_shape": 3})
    ]
    + [
        {"name": "regular", "configuration": {"chunk_shape": shape}}
        for shape in ([], [3], [3, 2, 2], [0, 2], [-3, 2], [3.5, 2], ["3", 2], [HUGE, 2])
    ],
    "chunk_key_encoding": [None, ..., 3, "default", [], {}, {"name": "none such"}, {"name": 3}]
    + [
        {"name": "default", "configuration": settings}
        for settings in (None, [], {}, {"separator": "_"}, {"separator": 3}, {"x": 1})
    ],
    "codecs": [None, ..., 3, "bytes", [], {}, [3], [None], [{}], [[]], [{"name": "none such"}]]
    + [[{"name": "bytes"}], [{"name": "zstd"}], [{"name": "bytes"}, {"name": "bytes"}]]
    + [[{"name": "bytes", "configuration": x}] for x in (3, [], {"endian": "up"}, {"x": 1})]
    + [[{"name": "transpose", "configuration": {"order": x}}, "bytes"] for x in ([0, 0], [2], "C")],
    "dimension_names": [3, "time", [], ["t"], ["t", "x", "y"], [3, 4], [None, {}], {}],
    "attributes": [3, "x", [], [1]],
    "storage_transformers": [[{"name": "none such"}], 3, {"name": "x"}],
    "none such": [3, {"must_understand": True}, {"name": "x"}],
}
TABLES = {2: FORMAT_2, 3: FORMAT_3}


def cases():
    for zarr_format, table in TABLES.items():
        for field, values in table.items():
            for value in values:
                yield zarr_format, field.partition(",")[0], value


def stores(zarr_format, damage):
    """Two arrays of which the first has a document that `damage` made of a good one."""
    store = make_store(
        {"bad": counted((7, 4)), "good": counted((7, 4))},
        chunks=(3, 2),
        zarr_format=zarr_format,
        dims=("time", "x"),
    )
    key = key_of("bad", zarr_format)
    put(store, key, damage(document_of(store, key)))
    return store


def check(store):
    """Opened by name, the array is refused or equal to what Zarr makes of it; the other is well."""
    values, told = values_or_error(store)
    if told is not None:
        assert "bad" in told
        assert len(told) < 1000
    elif values is not None:
        without_nulls(store)
        expected = zarr.open_array(store, path="bad", mode="r")[...]
        np.testing.assert_array_equal(values, expected)
    opened = tdi.open_arrays(store)
    np.testing.assert_array_equal(read_all(store, opened["good"])[0], counted((7, 4)))


def without_nulls(store):
    """State what is read for null, on which Zarr fails."""
    for key, field in (("bad/.zarray", "dimension_separator"), ("bad/zarr.json", "fill_value")):
        if key in store._store_dict and document_of(store, key).get(field, 0) is None:
            amend(store, key, **{field: "." if field == "dimension_separator" else 0})


def values_or_error(store):
    try:
        array = tdi.open_arrays(store, "bad", decode_cf=False)["bad"]
        if array.n_chunks > MOST_CHUNKS:
            return None, None
        return read_all(store, array, on_missing="fill")[0], None
    except tdi.errors.InSituError as error:
        return None, str(error)


def changed(document, field, value):
    document = {**document, field: value}
    return {name: value for name, value in document.items() if value is not ...}


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize(
    "zarr_format, field, value", [pytest.param(*case, id=f"{case}"[:80]) for case in cases()]
)
def test_a_field_that_holds_anything(zarr_format, field, value):
    check(stores(zarr_format, lambda document: changed(document, field, value)))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_that_is_none(zarr_format, name):
    store = stores(zarr_format, lambda _: DOCUMENTS[name])
    check(store)
    with pytest.raises(tdi.errors.GeometryError, match="bad"):
        tdi.open_arrays(store, "bad")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_document_that_is_cut_short(zarr_format, part):
    store = stores(zarr_format, lambda document: cut(json.dumps(document), part))
    check(store)
    with pytest.raises(tdi.errors.GeometryError, match=r"'bad/.*is not JSON"):
        tdi.open_arrays(store, "bad")


def cut(text, part):
    return text[: int(part * len(text))]


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_document_with_a_mark_of_its_encoding_is_read(zarr_format, encoding):
    store = stores(zarr_format, lambda document: json.dumps(document).encode(encoding))
    values, n_missing = read_all(store, tdi.open_arrays(store, "bad")["bad"])
    np.testing.assert_array_equal(values, counted((7, 4)))
    assert n_missing == 0


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_of_a_key_that_comes_twice_the_last_counts_as_for_zarr(zarr_format):
    def twice(document):
        return '{"shape": [1, 1], ' + json.dumps(document)[1:]

    store = stores(zarr_format, twice)
    values, _ = read_all(store, tdi.open_arrays(store, "bad")["bad"])
    np.testing.assert_array_equal(values, zarr.open_array(store, path="bad", mode="r")[...])


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff"])
def test_a_root_that_cannot_be_read_hides_no_array_that_is_named(zarr_format, content):
    store = stores(zarr_format, lambda document: document)
    put(store, ".zgroup" if zarr_format == 2 else "zarr.json", content)
    np.testing.assert_array_equal(
        read_all(store, tdi.open_arrays(store, "good")["good"])[0], counted((7, 4))
    )
    with pytest.raises(tdi.errors.GeometryError, match=r"'(\.zgroup|zarr\.json)' is no"):
        tdi.open_arrays(store)


@pytest.mark.parametrize("content", [b"{", b"[1]", b"3", b'"x"'])
def test_attributes_of_format_2_that_cannot_be_read_refuse_their_array(content):
    """They may hold the scale of its values."""
    store = stores(2, lambda document: document)
    put(store, "bad/.zattrs", content)
    check(store)
    with pytest.raises(tdi.errors.GeometryError, match=r"'bad/\.zattrs'"):
        tdi.open_arrays(store, "bad")


def test_attributes_of_format_3_that_are_no_object_refuse_their_array():
    store = stores(3, lambda document: changed(document, "attributes", [1]))
    with pytest.raises(tdi.errors.GeometryError, match="'bad' has attributes that are no JSON obj"):
        tdi.open_arrays(store, "bad")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    "seeds", [range(75), pytest.param(range(75, 500), marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning", "ignore::RuntimeWarning")
def test_documents_damaged_at_random(seeds, zarr_format):
    """Every value, at any depth, may become any other or go; the seed is printed by the error."""
    for seed in seeds:
        chance = random.Random(seed)

        def damage(document, chance=chance):
            for _ in range(chance.choice([1, 1, 1, 2, 3])):
                document = damaged(document, chance)
            return document

        store = stores(zarr_format, damage)
        try:
            check(store)
        except BaseException as error:
            error.add_note(f"seed {seed}: {document_of(store, key_of('bad', zarr_format))}")
            raise


ANYTHING = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 8, 2**31, 2**63, HUGE, 0.5, -0.0, 1e300),
    *("", "x", "C", "F", "/", ".", "bytes", "zstd", "float64", "<f8", ">f4", "NaN", "Infinity"),
    *([], [1], [0, 0], [7, 4], [3, 2], [2, 3], [[1]], {}, {"name": "bytes"}, {"id": "zstd"}),
]


def damaged(document, chance):
    """A copy in which one place has another content."""
    document = copy.deepcopy(document)
    holders = [holder for holder in containers(document) if holder]
    holder = chance.choice(holders)
    place = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    action = chance.random()
    if action < 0.2:
        del holder[place]
    elif action < 0.3 and isinstance(holder, list):
        holder.append(holder[place])
    else:
        holder[place] = copy.deepcopy(chance.choice(ANYTHING))
    return document or {"x": 1}


def containers(value):
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from containers(inner)
