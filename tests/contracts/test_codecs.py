"""What Zarr reads of an array is what a loader gives, whatever codecs it was written with."""

import numcodecs
import numpy as np
import pytest
import zarr.codecs
from zarr.abc.codec import Codec
from zarr.codecs import numcodecs as of_numcodecs
from zarr.registry import get_codec_class

import torchdata_insitu as tdi
from tests.codec_chains import CHAINS, written
from tests.contracts.chains import PLENTY
from tests.contracts.documents import document_of, key_of
from tests.contracts.zarr_oracle import check_tensor
from torchdata_insitu.testing import CountingStore

# Uneven last chunks on every axis, samples along the one in the middle.
SHAPE, CHUNKS, SAMPLE_AXIS = (5, 11, 7), (2, 4, 3), 1
MISSING = (1, 1, 2)
N_STORED = 3 * 3 * 3

pytestmark = pytest.mark.filterwarnings("ignore:.*not.*Zarr.*spec")


@pytest.mark.parametrize("name", CHAINS)
def test_batches_are_what_zarr_reads(name):
    chain = CHAINS[name]
    store, stored = written(chain, SHAPE, CHUNKS, missing=[MISSING])
    expected = np.moveaxis(stored, SAMPLE_AXIS, 0)
    expected = expected.astype(expected.dtype.newbyteorder("="))
    store = CountingStore(store)
    arrays = tdi.open_arrays(store, sample_axis=SAMPLE_AXIS)
    store.reset()
    views = {"x": arrays["t"].window(0, 1)}
    with tdi.build_loader(store, views, batch_size=4, budget_bytes=PLENTY) as loader:
        (way,) = (line for line in tdi.describe(loader).splitlines() if line.startswith("arrays"))
        assert f"; {chain.way}" in way
        planned, anchors = loader.plan.reads(), []
        for batch in loader:
            at = batch["sample_index"].numpy()
            anchors += at.tolist()
            check_tensor(batch["x"], expected[at[:, None] + [0, 1]])
        stats = loader.stats()
    assert sorted(anchors) == list(range(10))
    assert planned == stats.reads == {"t": N_STORED} == {"t": store.reads("t/")}
    assert set(store.gets.values()) == {1}
    assert stats.missing == {"t": 1}


def is_one_of_many(name):
    """Whether only Blosc's own compressor tells a chain from another one."""
    return name.startswith("3 blosc") and not name.startswith("3 blosc zstd")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if is_one_of_many(name) else ())
        for name in CHAINS
        if name.startswith("3")
    ],
)
def test_chains_inside_shards_are_what_zarr_reads(name):
    chain = CHAINS[name]
    store, stored = written(chain, SHAPE, CHUNKS, missing=[MISSING], shards=(4, 8, 6))
    expected = np.moveaxis(stored, SAMPLE_AXIS, 0)
    arrays = tdi.open_arrays(store, sample_axis=SAMPLE_AXIS)
    with tdi.build_loader(store, arrays, batch_size=4, budget_bytes=PLENTY) as loader:
        (way,) = (line for line in tdi.describe(loader).splitlines() if line.startswith("arrays"))
        assert chain.way in way
        anchors = []
        for batch in loader:
            at = batch["sample_index"].numpy()
            anchors += at.tolist()
            check_tensor(batch["t"], expected[at])
        stats = loader.stats()
    assert sorted(anchors) == list(range(11))
    assert stats.reads == {"t": N_STORED}
    assert stats.missing == {"t": 1}


def codec_ids(chain):
    """Ids of the codecs in the metadata that Zarr writes for a chain."""
    store, _ = written(chain, (1, 1, 1), (1, 1, 1))
    document = document_of(store, key_of("t", chain.zarr_format))
    if chain.zarr_format == 3:
        return {codec["name"] for codec in document["codecs"]}
    codecs = [*(document["filters"] or []), document["compressor"]]
    return {codec["id"] for codec in codecs if codec is not None}


def codecs_of(module):
    """Classes of codecs that a module of Zarr has for everyone."""
    public = [getattr(module, name) for name in module.__all__ if not name.startswith("_")]
    return {there for there in public if isinstance(there, type) and issubclass(there, Codec)}


def test_every_codec_of_zarr_and_numcodecs_is_tried_or_refused():
    """A codec that one of them learns is looked at here."""
    tried = {2: set(), 3: set()}
    for chain in CHAINS.values():
        tried[chain.zarr_format] |= codec_ids(chain)
    objects = {"pickle", "json2", "msgpack2", "vlen-utf8", "vlen-bytes", "vlen-array", "categorize"}
    assert set(numcodecs.registry.codec_registry) - tried[2] <= objects | {"zfpy", "pcodec"}
    tried_classes = {get_codec_class(name) for name in tried[3]}
    left = {codec.__name__ for codec in codecs_of(of_numcodecs) - tried_classes}
    assert left == {"ZFPY", "PCodec"}
    # Shards have tests of their own, text is refused, and casts need a package that is not here.
    left = {codec.__name__ for codec in codecs_of(zarr.codecs) - tried_classes}
    assert left <= {"ShardingCodec", "VLenBytesCodec", "VLenUTF8Codec", "CastValue"}
