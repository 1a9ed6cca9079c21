"""What may not be decoded is refused by name at opening, and nothing of it is built or run."""

import json

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import MemoryStore

from tests.contracts.refusals import refused
from tests.each_case import each_case
from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.array_document import ArrayDocument
from torchdata_insitu.geometry.codec_rules import check_codecs, codec_names
from torchdata_insitu.geometry.metadata import read_arrays
from torchdata_insitu.testing import make_store

BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
TEXT_AND_OBJECTS = ["json2", "msgpack2", "vlen-utf8", "vlen-bytes", "vlen-array", "categorize"]


def format_2(**fields):
    return ArrayDocument("a", {"zarr_format": 2, "shape": [4], "dtype": "<f4", **fields}, {})


def format_3(*codecs, **fields):
    document = {"zarr_format": 3, "shape": [4], "data_type": "float32", "codecs": list(codecs)}
    return ArrayDocument("a", {**document, **fields}, {})


def sharded(*codecs, index=()):
    settings = {"chunk_shape": [2], "codecs": [*codecs], "index_codecs": [BYTES, *index]}
    return {"name": "sharding_indexed", "configuration": settings}


def changed(store, name, **fields):
    """The same store, in whose document of an array some fields are others."""
    text = sync(store.get(name, default_buffer_prototype())).to_bytes()
    document = {**json.loads(text), **fields}
    payload = default_buffer_prototype().buffer.from_bytes(json.dumps(document).encode())
    sync(store.set(name, payload))
    return store


PICKLES = {
    "filter": format_2(filters=[{"id": "pickle"}]),
    "filter behind others": format_2(filters=[{"id": "delta", "dtype": "<f4"}, {"id": "pickle"}]),
    "compressor": format_2(compressor={"id": "pickle", "protocol": 4}),
    "inside of another codec": format_2(filters=[{"id": "both", "parts": [{"id": "pickle"}]}]),
    "format 3": format_3(BYTES, {"name": "numcodecs.pickle", "configuration": {"protocol": 4}}),
    "format 3, own name": format_3({"name": "pickle"}),
    "format 3, only the name": format_3(BYTES, "numcodecs.pickle"),
    "format 3, address as name": format_3({"name": "https://example.org/numcodecs/pickle"}),
    "inner codec of a shard": format_3(sharded(BYTES, {"name": "numcodecs.pickle"})),
    "only the name, in a shard": format_3(sharded(BYTES, "numcodecs.pickle")),
    "index of a shard": format_3(sharded(BYTES, index=[{"name": "numcodecs.pickle"}])),
    "shard in a shard": format_3(sharded(sharded(BYTES, {"name": "numcodecs.pickle"}))),
}


@pytest.mark.parametrize("array", PICKLES.values(), ids=PICKLES)
def test_pickle_is_refused_wherever_it_stands(array):
    with refused(GeometryError, "array 'a'", "pickle", "never decoded"):
        check_codecs(array)


@each_case("codec", TEXT_AND_OBJECTS)
@pytest.mark.parametrize(
    "place",
    [
        lambda name: format_2(filters=[{"id": name}]),
        lambda name: format_2(compressor={"id": name}),
        lambda name: format_3({"name": name}),
        lambda name: format_3({"name": f"numcodecs.{name}"}),
        lambda name: format_3(sharded({"name": name})),
    ],
    ids=["filter", "compressor", "format 3", "of numcodecs", "in a shard"],
)
def test_codec_of_objects_is_refused_on_numbers(place, codec):
    array = place(codec)
    with refused(GeometryError, "array 'a'", array.dtype_text, codec, "objects"):
        check_codecs(array)


@each_case(
    "array",
    [
        format_2(),
        format_2(filters=None, compressor=None),
        format_2(filters=[{"id": "delta", "dtype": "<f4"}], compressor={"id": "blosc"}),
        format_2(filters=[{"id": "own", "labels": ["pickle", "json2"], "comment": "pickle"}]),
        format_2(comment={"id": "pickle"}),
        format_3(BYTES, {"name": "zstd", "configuration": {"level": 1}}),
        format_3(BYTES, "crc32c"),
        format_3(sharded(BYTES, {"name": "blosc"}, index=[{"name": "crc32c"}])),
        format_3(BYTES, attributes={"id": "pickle"}, dimension_names=["pickle"]),
        format_3(BYTES, storage_transformers=[], hints={"must_understand": False, "name": "x"}),
        format_3(),
        format_3(codecs=None),
        format_3(codecs=17),
        format_2(filters="json2", compressor=3.5),
    ],
)
def test_what_only_looks_like_it_passes(array):
    check_codecs(array)


def test_document_of_any_depth_is_read():
    codec = {"name": "numcodecs.pickle"}
    for _ in range(20_000):
        codec = {"name": "outer", "configuration": {"codecs": [codec]}}
    with pytest.raises(GeometryError, match="never decoded"):
        check_codecs(format_3(codec))


def test_codecs_are_named_with_those_inside():
    array = format_3({"name": "transpose"}, sharded(BYTES, {"name": "zstd"}, index=["crc32c"]))
    names = ["bytes", "bytes", "crc32c", "sharding_indexed", "transpose", "zstd"]
    assert sorted(codec_names(array)) == names


def test_storage_transformers_are_refused():
    array = format_3(BYTES, storage_transformers=[{"name": "chunk-manifest-json"}])
    with refused(GeometryError, "array 'a'", "storage_transformers", "chunk-manifest-json"):
        check_codecs(array)


@pytest.mark.parametrize(
    "value",
    [
        {"name": "virtual-concatenation", "must_understand": True},
        {"name": "virtual-concatenation"},
        {"must_understand": "false"},
        True,
        None,
    ],
)
def test_field_that_has_to_be_understood_is_refused(value):
    with refused(GeometryError, "array 'a'", "'layers'", "must_understand"):
        check_codecs(format_3(BYTES, layers=value))


def test_unknown_field_of_format_2_is_none_of_our_business():
    check_codecs(format_2(layers={"must_understand": True}, _NCZARR_ARRAY={"dimrefs": ["/time"]}))


class Trap:
    """Unpickling this is noticed."""

    sprung = 0

    def __reduce__(self):
        return _spring, ()


def _spring():
    Trap.sprung += 1
    return np.zeros((2, 3), "f4")


@pytest.fixture
def unpickling_allowed(monkeypatch):
    """As if the user had allowed Zarr and numcodecs to run pickles."""
    monkeypatch.setattr(numcodecs.pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True)
    with zarr.config.set({"array.allow_unsafe_pickle_decode": True}):
        yield


@pytest.mark.parametrize("dtype", ["<f4", "|O"])
@pytest.mark.parametrize("field", ["filters", "compressor"])
def test_no_pickle_is_run(dtype, field, unpickling_allowed):
    trap = bytes(numcodecs.Pickle().encode(Trap()))
    numcodecs.Pickle().decode(trap)
    assert Trap.sprung == 1, "the trap works"
    store = make_store({"t": (4, 3), "u": (4, 3)}, zarr_format=2)
    codec = {"id": "pickle", "protocol": 4}
    value = [codec] if field == "filters" else codec
    changed(
        store, "t/.zarray", **{"dtype": dtype, "fill_value": 0, "compressor": None, field: value}
    )
    for key in ("t/0.0", "t/1.0"):
        sync(store.set(key, default_buffer_prototype().buffer.from_bytes(trap)))
    assert list(read_arrays(store)) == ["u"]
    with refused(GeometryError, "array 't'", "pickle" if dtype == "<f4" else "'|O'"):
        read_arrays(store, "t")
    assert Trap.sprung == 1
    Trap.sprung = 0


def test_no_codec_is_built_of_a_chain_with_a_pickle(monkeypatch):
    built = []

    class Built(numcodecs.Zlib):
        def __init__(self, *args, **settings):
            built.append(settings)
            super().__init__(*args, **settings)

    monkeypatch.setitem(numcodecs.registry.codec_registry, "zlib", Built)
    monkeypatch.setitem(numcodecs.registry.codec_registry, "pickle", Built)
    store = make_store({"t": (4, 3)}, zarr_format=2, codec="none")
    chain = {"filters": [{"id": "zlib"}, {"id": "pickle"}], "compressor": {"id": "zlib"}}
    changed(store, "t/.zarray", **chain)
    with pytest.raises(GeometryError, match="never decoded"):
        read_arrays(store, "t")
    assert not built


# A name of format 3 or 2, and what an error has to say beside the names of array and codec.
NOT_INSTALLED = {
    "zfpy": "numcodecs[zfpy]",
    "pcodec": "numcodecs[pcodec]",
    "imagecodecs_jpeg2k": "imagecodecs-numcodecs",
    "no-such-codec": "not available",
}


@pytest.mark.parametrize("codec", NOT_INSTALLED)
def test_codec_that_is_not_installed_is_named_with_its_package_in_format_2(codec):
    store = make_store({"t": (4, 3), "u": (4, 3)}, zarr_format=2)
    changed(store, "t/.zarray", compressor={"id": codec})
    assert list(read_arrays(store)) == ["u"]
    with refused(GeometryError, "array 't'", codec, NOT_INSTALLED[codec]):
        read_arrays(store, "t")


@pytest.mark.filterwarnings("ignore:.*not.*Zarr.*spec")
@pytest.mark.parametrize("in_shard", [False, True])
@pytest.mark.parametrize(
    "codec, says",
    [
        ("numcodecs.zfpy", "numcodecs[zfpy]"),
        ("numcodecs.pcodec", "numcodecs[pcodec]"),
        ("imagecodecs_jpeg2k", "imagecodecs-zarr"),
        ("cast_value", "cast-value-rs"),
        ("no-such-codec", "not available"),
    ],
)
def test_codec_that_is_not_installed_is_named_with_its_package(codec, says, in_shard):
    store = make_store({"t": (4, 3), "u": (4, 3)}, chunks=(2, 3))
    settings = {"data_type": "int16"} if codec == "cast_value" else {}
    chain = [{"name": codec, "configuration": settings}]
    if codec == "cast_value":
        chain.append(BYTES)
    if in_shard:
        inner = {"chunk_shape": [2, 3], "codecs": chain, "index_codecs": [BYTES]}
        chain = [{"name": "sharding_indexed", "configuration": inner}]
    changed(store, "t/zarr.json", codecs=chain)
    assert list(read_arrays(store)) == ["u"]
    with refused(GeometryError, "array 't'", codec.removeprefix("numcodecs."), says) as caught:
        read_arrays(store, "t")
    assert "fill_value" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:.*not.*Zarr.*spec")
def test_codec_that_is_set_up_wrongly_is_refused_at_opening():
    store = make_store({"t": (4, 3)})
    changed(
        store, "t/zarr.json", codecs=[BYTES, {"name": "numcodecs.zlib", "configuration": {"x": 1}}]
    )
    with refused(GeometryError, "array 't'", "'x'"):
        read_arrays(store, "t")


def test_refused_fields_do_no_harm_to_other_arrays():
    store = make_store({"t": (4, 3), "u": (4, 3)})
    changed(store, "t/zarr.json", storage_transformers=[{"name": "indirect"}])
    assert list(read_arrays(store)) == ["u"]


@pytest.mark.parametrize("dtype", ["|O", "<U4"])
def test_text_is_refused_by_its_dtype(dtype):
    store = MemoryStore()
    zarr.create_group(store, zarr_format=2)
    document = {
        "zarr_format": 2,
        "shape": [4],
        "chunks": [2],
        "dtype": dtype,
        "fill_value": "",
        "order": "C",
        "compressor": None,
        "filters": [{"id": "categorize", "labels": ["a"], "dtype": dtype}],
    }
    payload = default_buffer_prototype().buffer.from_bytes(json.dumps(document).encode())
    sync(store.set("t/.zarray", payload))
    with refused(GeometryError, "array 't'", "integer codes"):
        read_arrays(store, "t")
