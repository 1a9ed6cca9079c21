import warnings

import pytest
import zarr

from tests.contracts.dtype_stores import document, rewrite
from tests.each_case import each_case
from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry import array_reading
from torchdata_insitu.geometry.metadata import read_arrays


@pytest.mark.parametrize("other", ["int32", "float64"])
def test_a_dtype_that_zarr_takes_for_another_is_refused(other, monkeypatch):
    """As where somebody registers a data type of their own under a known name."""
    store = zarr.storage.MemoryStore()
    zarr.create_array(store, name="t", shape=(4,), chunks=(2,), dtype="float32")
    parse = array_reading.parse_array_metadata
    monkeypatch.setattr(
        array_reading,
        "parse_array_metadata",
        lambda document: parse({**document, "data_type": other}),
    )
    with pytest.raises(GeometryError, match=f"'t' .* it is float32 here and {other} to"):
        read_arrays(store, "t")


BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}
CHECKSUM = {"name": "crc32c"}


def shard(*codecs, inner=(2, 3), index=(BYTES, CHECKSUM)):
    settings = {
        "chunk_shape": inner,
        "codecs": codecs,
        "index_codecs": index,
        "index_location": "end",
    }
    return {"name": "sharding_indexed", "configuration": settings}


NO_PIPELINES = {
    "compressed before it is bytes": (ZSTD, BYTES),
    "a checksum before it is bytes": (CHECKSUM, BYTES),
    "transposed when it is bytes": (BYTES, TRANSPOSE),
    "transposed when it is compressed": (BYTES, ZSTD, TRANSPOSE),
    "no bytes": (TRANSPOSE,),
    "bytes twice": (BYTES, BYTES),
    "nothing": (),
}
ORDERS = {
    **NO_PIPELINES,
    **{f"{name}, in a shard": (shard(*chain),) for name, chain in NO_PIPELINES.items()},
    **{
        f"{name}, in a shard of a shard": (shard(shard(*chain, inner=(1, 3))),)
        for name, chain in NO_PIPELINES.items()
    },
    **{
        f"{name}, in a shard before a codec": (shard(*chain), ZSTD)
        for name, chain in NO_PIPELINES.items()
    },
    **{
        f"{name}, of an index": (shard(BYTES, index=chain),) for name, chain in NO_PIPELINES.items()
    },
    "a codec before a shard": (ZSTD, shard(BYTES)),
    "an index that is only a checksum": (shard(BYTES, index=(CHECKSUM,)),),
    "the index of a shard in a shard": (shard(shard(BYTES, inner=(1, 3), index=(CHECKSUM,))),),
}


@each_case("name, codecs", ORDERS.items())
def test_codecs_in_an_order_that_no_pipeline_takes_are_refused_at_opening(name, codecs):
    store = zarr.storage.MemoryStore()
    for each in ("t", "u"):
        zarr.create_array(store, name=each, shape=(6, 3), chunks=(4, 3), dtype="f4")
    rewrite(store, "t", codecs=codecs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(GeometryError, match=r"array 't' of dtype float32 cannot be opened"):
            read_arrays(store, "t")
        assert list(read_arrays(store)) == ["u"]


@pytest.mark.parametrize(
    "codecs",
    [
        (shard(BYTES), ZSTD),
        (TRANSPOSE, shard(BYTES, inner=(3, 2))),
        (shard(shard(BYTES)), CHECKSUM),
    ],
)
def test_codecs_around_shards_are_opened_without_a_warning(codecs):
    """That they rule out partial reads is of no account: the shard is the stored chunk."""
    store = zarr.storage.MemoryStore()
    zarr.create_array(store, name="t", shape=(6, 6), chunks=(6, 6), dtype="f4")
    rewrite(store, "t", codecs=codecs)
    assert document(store, "t")[1]["codecs"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_arrays(store, "t")["t"].stored_chunk_shape == (6, 6)
