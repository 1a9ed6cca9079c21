"""What no tensor holds is refused with advice, does no harm to others, and is not decoded."""

import base64
import pathlib
import pickle

import numcodecs.pickles
import pytest
import zarr
from zarr.core.buffer import cpu
from zarr.core.sync import sync

import torchdata_insitu as tdi
from tests.contracts.dtype_stores import read, rewrite
from torchdata_insitu.errors import GeometryError
from torchdata_insitu.testing import make_store

REFUSED = {
    "text": ({"dtype": "<U4", "fill_value": ""}, r"dtype '<U4'.*integer codes"),
    "bytes": ({"dtype": "|S4", "fill_value": ""}, r"dtype '\|S4'.*integer codes"),
    "raw": ({"dtype": "|V4", "fill_value": "AAAAAA=="}, r"dtype '\|V4'.*bytes of a meaning"),
    "long double": ({"dtype": "<f16"}, r"dtype '<f16'.*float32"),
    "long complex": ({"dtype": "<c32"}, r"dtype '<c32'.*float32"),
    "vlen text": ({"dtype": "|O", "filters": [{"id": "vlen-utf8"}]}, r"dtype '\|O'"),
    "vlen arrays": ({"dtype": "|O", "filters": [{"id": "vlen-array", "dtype": "<f4"}]}, r"'\|O'"),
    "json": ({"dtype": "|O", "filters": [{"id": "json2"}]}, r"dtype '\|O'"),
    "msgpack": ({"dtype": "|O", "filters": [{"id": "msgpack2"}]}, r"dtype '\|O'"),
    "structured": ({"dtype": [["u", "<f4"], ["v", "<i4"]]}, r"fields 'u' \(float32\).*field='u'"),
    "shaped field": ({"dtype": [["u", "<f4", [2]], ["v", "<i4"]]}, "without a shape of its own"),
    "object field": ({"dtype": [["u", "<f4"], ["v", "|O"]]}, "each of its fields"),
    "nonsense": ({"dtype": "nonsense"}, "dtype 'nonsense'"),
}
REFUSED_3 = {
    "string": ("string", "'string'.*integer codes"),
    "utf32": (
        {"name": "fixed_length_utf32", "configuration": {"length_bytes": 8}},
        "integer codes",
    ),
    "bytes": ({"name": "null_terminated_bytes", "configuration": {"length_bytes": 4}}, "'odd'"),
    "raw": ("r32", "'r32'.*bytes of a meaning"),
    "bfloat16": ("bfloat16", "'bfloat16'.*float32"),
    "float8": ("float8_e4m3", "'float8_e4m3'.*float32"),
    "int4": ("int4", "'int4'.*float32"),
    "complex": ("complex_bfloat16", "'complex_bfloat16'.*float32"),
    "unknown": ({"name": "acme.money", "configuration": {"cents": True}}, "'acme.money'"),
    "struct": (
        {
            "name": "struct",
            "configuration": {"fields": [{"name": "u", "data_type": "float32"}]},
        },
        r"fields 'u' \(float32\): open_arrays\(\.\.\., field='u'\)",
    ),
}


@pytest.mark.parametrize(
    "zarr_format, changes, fact",
    [
        *((2, changes, fact) for changes, fact in REFUSED.values()),
        *((3, {"data_type": data_type}, fact) for data_type, fact in REFUSED_3.values()),
    ],
    ids=[*(f"2 {name}" for name in REFUSED), *(f"3 {name}" for name in REFUSED_3)],
)
def test_what_no_tensor_holds_is_refused_with_advice_and_does_no_harm(zarr_format, changes, fact):
    arrays = {"good": (6, 2), "odd": (6, 2)}
    store = rewrite(make_store(arrays, chunks=(2, 2), zarr_format=zarr_format), "odd", **changes)
    assert list(read(store)) == ["good"]
    with pytest.raises(GeometryError, match=fact) as caught:
        tdi.open_arrays(store, "odd")
    assert "array 'odd'" in str(caught.value)
    if "field" not in str(caught.value):
        with pytest.raises(GeometryError):
            tdi.open_arrays(store, "odd", dtype="float32")


class Trap:
    """Makes a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self.path,)


@pytest.mark.parametrize("where", ["filter", "compressor"])
@pytest.mark.parametrize("dtype", ["|O", [["u", "<f4"], ["v", "|O"]]])
@pytest.mark.parametrize("names", [None, "odd"])
def test_no_pickled_object_is_decoded(where, dtype, names, tmp_path, monkeypatch):
    """Also where the user has allowed it to numcodecs and to Zarr, for other code."""
    monkeypatch.setattr(numcodecs.pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True)
    sprung = tmp_path / "sprung"
    payload = pickle.dumps(Trap(sprung))
    pickle.loads(payload)
    assert sprung.exists()
    sprung.unlink()
    store = make_store({"good": (4,), "odd": (4,)}, chunks=(2,), zarr_format=2)
    codec = {"id": "pickle", "protocol": 5}
    filters, compressor = ([codec], None) if where == "filter" else (None, codec)
    fill_value = base64.b64encode(payload).decode()
    rewrite(
        store, "odd", dtype=dtype, filters=filters, compressor=compressor, fill_value=fill_value
    )
    sync(store.set("odd/0", cpu.Buffer.from_bytes(payload)))
    sync(store.set("odd/1", cpu.Buffer.from_bytes(payload)))
    with zarr.config.set({"array.allow_unsafe_pickle_decode": True}):
        if names is None:
            assert list(read(store)) == ["good"]
        else:
            with pytest.raises(GeometryError, match="'odd' has dtype"):
                tdi.open_arrays(store, names)
            with pytest.raises(GeometryError, match="'odd' has dtype"):
                tdi.open_arrays(store, names, field="u", dtype="f4", decode_cf=False)
    assert not sprung.exists()
