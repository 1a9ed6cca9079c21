from torchdata_insitu.geometry.chunk_key import ChunkKey


def test_equal_keys_are_one_entry_whatever_names_the_source():
    assert len({ChunkKey(0, 3, 0), ChunkKey(0, 3, 0), ChunkKey("era5", 3, 0)}) == 2


def test_keys_sort_by_source_then_run_then_tile():
    keys = [ChunkKey(1, 0, 0), ChunkKey(0, 2, 1), ChunkKey(0, 2, 0)]
    assert sorted(keys) == [ChunkKey(0, 2, 0), ChunkKey(0, 2, 1), ChunkKey(1, 0, 0)]


def test_a_chunk_of_another_source_is_the_same_run_and_tile():
    key = ChunkKey(3, 7, 2)
    other = key.of(("store", "t2m"))
    assert other == ChunkKey(source=("store", "t2m"), sample_run=7, field_tile=2)
    assert type(other) is ChunkKey
    assert other.of(3) == key
    assert key == ChunkKey(3, 7, 2)
