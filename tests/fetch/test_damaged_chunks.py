"""Of every chain of codecs: damaged bytes are an error that says where, or they are harmless."""

import functools
import threading

import numpy as np
import pytest
import zarr
from zarr.codecs import numcodecs as of_numcodecs
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import MemoryStore

from tests.codec_chains import CHAINS, written
from tests.each_case import each_case
from tests.fetch.loads import one_array, stale_slot
from torchdata_insitu.errors import DecodeError
from torchdata_insitu.fetch.decoder import ChunkDecoder
from torchdata_insitu.fetch.requests import RequestTable

# One stored chunk for each chunk: whole fields, so that plain chains write into the slot.
SHAPE, CHUNKS = (6, 2, 4), (3, 2, 4)

pytestmark = pytest.mark.filterwarnings("ignore:.*not.*Zarr.*spec")

# Zarr decodes these, and passes over what does not belong to the content.
PASSES_OVER_OTHERS = {"2 base64", "2 lzma alone", "2 lzma raw", "3 numcodecs lzma alone"}

# What differs between the kinds of blosc is its own business.
OTHER_BLOSC = ("blosc blosclz", "blosc lz4hc", "blosc zlib")
every_chain = each_case(
    "name", [name for name in CHAINS if not any(kind in name for kind in OTHER_BLOSC)]
)


def stored_bytes(store, key):
    return sync(store.get(key, default_buffer_prototype())).to_bytes()


class Chunk:
    """The second stored chunk of an array, decoded into slots with old rows in them."""

    def __init__(self, name):
        store, stored = written(CHAINS[name], SHAPE, CHUNKS)
        self.array = one_array(store)
        self.decoder = ChunkDecoder(self.array)
        self.request = RequestTable(self.array).requests(1)[0]
        self.payload = stored_bytes(store, self.request.key)
        self.values = stored[CHUNKS[0] :]

    def decoded(self, payload):
        slot = stale_slot(self.array)
        self.decoder.decode(payload, self.request, slot)
        return slot

    def refuses(self, payload):
        with pytest.raises(DecodeError) as caught:
            self.decoded(payload)
        return str(caught.value)

    def refuses_or_gives_the_values(self, payload):
        try:
            got = self.decoded(payload)
        except DecodeError:
            return
        np.testing.assert_array_equal(got, self.values)


@functools.cache
def chunk_of(name):
    """One for all tests, which leave it as it is; what was refused before makes no difference."""
    return Chunk(name)


@every_chain
def test_whole_chunk_decodes(name):
    chunk = chunk_of(name)
    np.testing.assert_array_equal(chunk.decoded(chunk.payload), chunk.values)


@every_chain
def test_chunk_cut_anywhere_is_an_error(name):
    chunk = chunk_of(name)
    for n_bytes in range(len(chunk.payload)):
        text = chunk.refuses(chunk.payload[:n_bytes])
    assert f"{len(chunk.payload) - 1} bytes are stored" in text
    for fact in ("array 't'", repr(chunk.request.key), str(chunk.request.coordinates), "expected"):
        assert fact in text


@every_chain
def test_bytes_of_something_else_are_an_error(name):
    chunk = chunk_of(name)
    payload = chunk.payload
    check = chunk.refuses_or_gives_the_values if name in PASSES_OVER_OTHERS else chunk.refuses
    for damaged in (
        b"<html>please log in</html>",
        b"\0" + payload,
        payload[1:] + b"\0\0",
        b"\xff" * (len(payload) + 5),
        payload * 3 + b"x",
    ):
        check(damaged)


@every_chain
def test_bytes_behind_a_chunk_never_make_other_values(name):
    chunk = chunk_of(name)
    for behind in (b"\0", b"x", bytes(64), b"garbage"):
        chunk.refuses_or_gives_the_values(chunk.payload + behind)


@pytest.mark.parametrize("rows", [1, 2, 4, 6])
@every_chain
def test_chunk_of_more_or_fewer_rows_is_an_error(name, rows):
    chunk = chunk_of(name)
    other, _ = written(CHAINS[name], (2 * rows, 2, 4), (rows, 2, 4))
    chunk.refuses(stored_bytes(other, chunk.request.key))


CHECKED = [
    name
    for name in CHAINS
    if any(word in name for word in ("checksum", "crc32", "adler", "fletcher", "jenkins"))
]


@each_case("name", CHECKED)
def test_checksum_finds_flipped_bits(name):
    chunk = chunk_of(name)
    for number in range(len(chunk.payload)):
        damaged = bytearray(chunk.payload)
        damaged[number] ^= 1 << number % 8
        # Of a compression around a checksum, some bits of the header mean nothing to the content.
        chunk.refuses_or_gives_the_values(bytes(damaged))


@pytest.mark.parametrize("decode_dtype", ["<f8", "<i4", "<f2"])
def test_codec_that_gives_numbers_of_another_type_is_an_error(decode_dtype):
    """Zarr would convert them."""
    codec = of_numcodecs.AsType(encode_dtype="<f4", decode_dtype="<f4")
    store = MemoryStore()
    array = zarr.create_array(
        store, name="t", shape=(4, 2), chunks=(2, 2), dtype="f4", filters=codec
    )
    array[...] = np.arange(8).reshape(4, 2)
    document = stored_bytes(store, "t/zarr.json")
    changed = document.replace(
        b'"decode_dtype": "<f4"', f'"decode_dtype": "{decode_dtype}"'.encode()
    )
    assert changed != document
    sync(store.set("t/zarr.json", default_buffer_prototype().buffer.from_bytes(changed)))
    assert zarr.open_array(store, path="t")[...].dtype == "f4"
    opened = one_array(store)
    payload = stored_bytes(store, "t/c/0/0")
    with pytest.raises(DecodeError, match=f"decodes to {np.dtype(decode_dtype).name}"):
        ChunkDecoder(opened).decode(
            payload, RequestTable(opened).requests(0)[0], stale_slot(opened)
        )


@pytest.mark.parametrize(
    "name",
    [
        "2 zstd",
        "2 F order, zstd",
        "3 transpose",
        "2 many",
        "3 two compressions",
        "2 lzma",
        "3 gzip",
    ],
)
def test_threads_decode_at_once(name):
    chunk = chunk_of(name)
    n_threads = 4
    barrier = threading.Barrier(n_threads)
    slots = [[] for _ in range(n_threads)]

    def decode(number):
        barrier.wait()
        slots[number] += [chunk.decoded(chunk.payload) for _ in range(50)]

    threads = [threading.Thread(target=decode, args=(number,)) for number in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(map(len, slots)) == 50 * n_threads
    for slot in (slot for each in slots for slot in each):
        np.testing.assert_array_equal(slot, chunk.values)
