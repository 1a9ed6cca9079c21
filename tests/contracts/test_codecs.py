"""What Zarr reads of an array is what a loader gives, whatever codecs it was written with."""

import numcodecs
import numpy as np
import pytest
from zarr.codecs import numcodecs as of_numcodecs
from zarr.registry import get_codec_class

import torchdata_insitu as tdi
from tests.codec_chains import CHAINS, written
from tests.contracts.chains import PLENTY
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


@pytest.mark.parametrize("name", [name for name in CHAINS if name.startswith("3")])
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


def test_every_codec_of_zarr_and_numcodecs_is_tried_or_refused():
    """A codec that one of them learns is looked at here."""
    tried = " ".join(CHAINS)
    of_format_2 = {name.replace("_", "") for name in numcodecs.registry.codec_registry}
    objects = {"pickle", "json2", "msgpack2", "vlen-utf8", "vlen-bytes", "vlen-array", "categorize"}
    not_installed = {"zfpy", "pcodec"}
    assert {name for name in of_format_2 if name not in tried} <= objects | not_installed
    exported = {name for name in of_numcodecs.__all__ if not name.startswith("_")}
    assert {name for name in map(str.lower, exported) if name not in tried} <= not_installed
    for name in ("blosc", "bytes", "crc32c", "gzip", "scale_offset", "transpose", "zstd"):
        assert get_codec_class(name)
        assert name in tried
