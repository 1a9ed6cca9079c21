"""Indexes are read as they were written, or refused; the last ones are kept."""

import random
import threading

import numpy as np
import pytest

from tests.each_case import each_case
from tests.fetch.loads import one_array
from tests.fetch.shard_stores import NOWHERE, Index, sharded, values_of
from torchdata_insitu.fetch.byte_span import ByteSpan
from torchdata_insitu.fetch.shard_index import ShardIndex, ShardIndexError, ShardIndexes, index_span
from torchdata_insitu.geometry.chunk_grid import AxisChunks, ChunkGrid
from torchdata_insitu.geometry.shard_layout import ShardLayout


def layout(*, first=False, checksum=True, big=False):
    grid = ChunkGrid((AxisChunks.regular(8, 8),))
    return ShardLayout(grid, index_first=first, has_checksum=checksum, is_big_endian=big)


def encoded(entries, *, checksum=True):
    own = Index(len(entries), checksum=checksum)
    return np.frombuffer(own.put(bytes(own.n_bytes), entries), np.uint8)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("checksum", [True, False])
def test_stored_chunks_are_where_the_index_of_a_shard_says(first, checksum):
    source = sharded(
        (8, 6), (2, 3), (8, 6), codec="none", index="start" if first else "end", checksum=checksum
    )
    array = one_array(source, name="t")
    shard = np.frombuffer(source._store_dict["t/c/0/0"].to_bytes(), np.uint8)
    index = ShardIndex.of_shard(shard, array.shards, 8)
    span = index_span(array.shards, 8)
    part = shard[span.start : span.stop or None]
    assert part.size == span.n_bytes == 128 + 4 * checksum
    again = ShardIndex.read(part, array.shards, 8)
    values = values_of(source)
    for entry in range(8):
        row, column = divmod(entry, 2)
        expected = values[2 * row : 2 * row + 2, 3 * column : 3 * column + 3]
        start, stop = index.span(entry)
        assert again.span(entry) == (start, stop)
        assert shard[start:stop].tobytes() == expected.tobytes()


def test_numbers_of_the_other_byte_order_are_the_same():
    entries = [[0, 10], [NOWHERE, NOWHERE], [10, 2**40]]
    little = encoded(entries, checksum=False)
    big = np.frombuffer(little.view("<u8").astype(">u8").tobytes(), np.uint8)
    one = ShardIndex.read(little, layout(checksum=False), 3)
    other = ShardIndex.read(big, layout(checksum=False, big=True), 3)
    for index in (one, other):
        assert [index.span(n) for n in range(3)] == [(0, 10), None, (10, 10 + 2**40)]


@each_case("change", [-52, -16, -1, 1, 16])
@each_case("checksum", [True, False])
def test_bytes_that_are_too_few_or_too_many_are_refused(change, checksum):
    content = encoded([[0, 10]] * 3, checksum=checksum)
    n_bytes = content.size
    wrong = np.resize(content, max(0, n_bytes + change))
    fact = f"its index has {n_bytes} bytes, and {wrong.size} of them are there"
    with pytest.raises(ShardIndexError, match=fact):
        ShardIndex.read(wrong, layout(checksum=checksum), 3)


def test_a_shard_that_is_shorter_than_its_index_is_refused():
    for first in (True, False):
        with pytest.raises(ShardIndexError, match="has 52 bytes, and 7 of them"):
            ShardIndex.of_shard(np.zeros(7, np.uint8), layout(first=first), 3)


@each_case("byte", range(52))
def test_no_bit_may_change(byte):
    content = encoded([[0, 10], [10, 7], [NOWHERE, NOWHERE]]).copy()
    content[byte] ^= 4
    with pytest.raises(ShardIndexError, match="checksum"):
        ShardIndex.read(content, layout(), 3)


@each_case(
    "pair",
    [(NOWHERE, 5), (5, NOWHERE), (NOWHERE, 0), (2**63, 1), (1, 2**63), (2**62, 2**62 + 2**61)],
)
@each_case("checksum", [True, False])
def test_places_that_no_object_has_are_refused(pair, checksum):
    content = encoded([[0, 10], pair], checksum=checksum)
    with pytest.raises(ShardIndexError, match=f"entry 1 .* {pair[1]} bytes from byte {pair[0]} on"):
        ShardIndex.read(content, layout(checksum=checksum), 2)


def test_the_last_place_of_all_is_one():
    index = ShardIndex.read(encoded([[2**62, 2**62 - 1], [0, 0]]), layout(), 2)
    assert index.span(0) == ByteSpan(2**62, 2**63 - 1)
    assert index.span(1).n_bytes == 0


def test_it_holds_nothing_of_the_bytes_it_was_read_from():
    content = encoded([[3, 4]]).copy()
    index = ShardIndex.read(content, layout(), 1)
    content[:] = 0
    assert index.span(0) == (3, 7)


def an_index(n_entries=2):
    return ShardIndex.read(encoded([[0, 1]] * n_entries), layout(), n_entries)


def test_those_used_last_are_kept():
    indexes = ShardIndexes(most_bytes=3 * 32)
    kept = {key: an_index() for key in "abcd"}
    for key in "abc":
        indexes.keep(key, kept[key])
    assert indexes.find("a") is kept["a"]
    indexes.keep("d", kept["d"])
    assert [indexes.find(key) for key in "abcd"] == [kept["a"], None, kept["c"], kept["d"]]


def test_one_that_is_larger_than_all_there_is_room_for_is_kept_alone():
    indexes = ShardIndexes(most_bytes=100)
    small, large = an_index(), an_index(50)
    indexes.keep("small", small)
    indexes.keep("large", large)
    assert (indexes.find("small"), indexes.find("large")) == (None, large)
    indexes.keep("small", small)
    assert (indexes.find("small"), indexes.find("large")) == (small, None)
    assert indexes._n_bytes == small.n_bytes


def test_one_that_is_kept_again_takes_the_place_of_the_old_one():
    indexes = ShardIndexes(most_bytes=64)
    for _ in range(5):
        newest = an_index()
        indexes.keep("a", newest)
    assert indexes.find("a") is newest
    assert indexes._n_bytes == newest.n_bytes
    indexes.forget("a")
    indexes.forget("a")
    assert (indexes.find("a"), indexes._n_bytes) == (None, 0)


def test_many_threads_may_keep_find_and_forget():
    indexes = ShardIndexes(most_bytes=5 * 32)
    wrong = []

    def uses(seed):
        draw = random.Random(seed)
        for _ in range(500):
            key = draw.choice("abcdefgh")
            match draw.randrange(3):
                case 0:
                    indexes.keep(key, an_index(1 + ord(key) - ord("a")))
                case 1:
                    indexes.forget(key)
                case _:
                    found = indexes.find(key)
                    if found is not None and found.n_bytes != 16 * (1 + ord(key) - ord("a")):
                        wrong.append(key)

    users = [threading.Thread(target=uses, args=(seed,)) for seed in range(4)]
    for user in users:
        user.start()
    for user in users:
        user.join(30)
    assert wrong == []
    assert indexes._n_bytes == sum(index.n_bytes for index in indexes._kept.values())
    assert indexes._n_bytes <= 5 * 32 or len(indexes._kept) == 1
