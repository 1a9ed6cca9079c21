"""What metadata say of chunks and shards, and what they must not say."""

import pytest
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec
from zarr.core.metadata import ArrayV3Metadata
from zarr.core.metadata.v3 import RectilinearChunkGridMetadata
from zarr.storage import MemoryStore

from tests.each_case import each_case
from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.array_document import ArrayDocument
from torchdata_insitu.geometry.chunk_layout import chunk_layout, with_regular_grid
from torchdata_insitu.geometry.metadata import read_arrays

INDEX = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
BYTES = [{"name": "bytes", "configuration": {"endian": "little"}}]


def document(shape, steps, *, kind="regular", inner=None, **sharding):
    """Of an array of format 3; with `inner` its chunks are shards of stored chunks."""
    grid = {"chunk_shape": steps}
    if kind == "rectilinear":
        grid = {"kind": "inline", "chunk_shapes": steps}
    codecs = BYTES
    if inner is not None:
        settings = {"chunk_shape": inner, "codecs": BYTES, "index_codecs": INDEX, **sharding}
        codecs = [{"name": "sharding_indexed", "configuration": settings}]
    return {
        "zarr_format": 3,
        "shape": shape,
        "chunk_grid": {"name": kind, "configuration": grid},
        "codecs": codecs,
    }


def layout(*args, **options):
    return chunk_layout(ArrayDocument("t", document(*args, **options), {}))


def bounds(axis):
    return [axis.bounds(number) for number in range(axis.n_chunks)]


def test_a_regular_grid_is_a_step_on_each_axis():
    found = layout([10, 6], [4, 3])
    assert [axis.step for axis in found.grid.axes] == [4, 3]
    assert found.shards is None


def test_format_2_has_regular_grids():
    meta = {"zarr_format": 2, "shape": [10, 6], "chunks": [4, 9]}
    found = chunk_layout(ArrayDocument("t", meta, {}))
    assert (found.grid.shape, found.shards) == ((3, 1), None)


@pytest.mark.parametrize("step", [0, 1, 7])
def test_an_axis_without_elements_has_no_chunks(step):
    assert layout([0, 6], [step, 3]).grid.shape == (0, 2)


def test_the_sizes_of_a_rectilinear_grid_are_numbers_runs_or_one_for_all():
    found = layout([91, 8, 9], [[31, [30, 2]], 4, [[2, 3], 3]], kind="rectilinear")
    assert bounds(found.grid.axes[0]) == [(0, 31), (31, 61), (61, 91)]
    assert found.grid.axes[1].step == 4
    assert bounds(found.grid.axes[2]) == [(0, 2), (2, 4), (4, 6), (6, 9)]


@pytest.mark.parametrize(
    "sizes, expected, stored",
    [
        ([4, 4, 9], [(0, 4), (4, 8), (8, 10)], 9),
        ([4, 6, 7], [(0, 4), (4, 10)], 6),
        ([4, [6, 10**15]], [(0, 4), (4, 10)], 6),
        ([10**15], [(0, 10)], 10**15),
        ([[4, 10**15]], [(0, 4), (4, 8), (8, 10)], 4),
    ],
)
def test_the_last_size_may_reach_past_the_end_and_others_lie_behind_it(sizes, expected, stored):
    axis = layout([10], [sizes], kind="rectilinear").grid.axes[0]
    assert bounds(axis) == expected
    assert axis.stored_size(axis.n_chunks - 1) == stored


def test_an_axis_without_elements_may_have_sizes():
    for inner in (None, [3]):
        found = layout([0], [[[4, 3]]], kind="rectilinear", inner=inner)
        assert found.grid.shape == (0,)


@each_case(
    "sizes",
    [
        [4, 5],
        [],
        [0, 10],
        [-1, 11],
        [True, 9],
        [4.0, 6],
        ["4", 6],
        [[4], 6],
        [[4, 1, 1], 6],
        [[4, 0], 6],
        [[[4, 1], 1], 6],
        [None],
        [[1, 9]],
        "10",
        {"size": 10},
    ],
)
def test_sizes_that_do_not_cover_the_axis_or_are_none_are_refused(sizes):
    with pytest.raises(GeometryError, match="'t'"):
        layout([10], [sizes], kind="rectilinear")


@pytest.mark.parametrize("kind", [{}, *({"kind": kind} for kind in ("file", "Inline", 3, None))])
def test_sizes_that_are_not_in_the_metadata_are_refused_as_by_zarr(kind):
    grid = {"name": "rectilinear", "configuration": {**kind, "chunk_shapes": [[4, 6]]}}
    with (
        zarr.config.set({"array.rectilinear_chunks": True}),
        pytest.raises(ValueError, match="inline"),
    ):
        RectilinearChunkGridMetadata.from_dict(grid)
    meta = {**document([10], [[4, 6]], kind="rectilinear"), "chunk_grid": grid}
    with pytest.raises(
        GeometryError, match=r"'t' has a rectilinear chunk grid of the kind .*inline"
    ):
        chunk_layout(ArrayDocument("t", meta, {}))


def test_more_sizes_than_memory_has_room_for_are_refused():
    with pytest.raises(GeometryError, match="more than 10000000 chunk sizes"):
        layout([10**12], [[[1, 10**12]]], kind="rectilinear")


@pytest.mark.parametrize("steps", [[4], [4, 3, 2], 4, None, "ab", [0, 3], [4, None], [4, 3.0]])
def test_a_grid_that_does_not_fit_the_shape_is_refused(steps):
    with pytest.raises(GeometryError, match=r"'t' of shape \(10, 6\)"):
        layout([10, 6], steps)


@pytest.mark.parametrize("grid", [{"name": "hexagonal"}, "regular", None, {}, 3, {"name": None}])
def test_another_grid_is_refused(grid):
    meta = {**document([10], [4]), "chunk_grid": grid}
    with pytest.raises(GeometryError, match="'t'"):
        chunk_layout(ArrayDocument("t", meta, {}))


def test_the_stored_chunk_of_a_shard_is_the_inner_one():
    found = layout([20, 6], [8, 6], inner=[2, 3])
    assert (found.grid.shape, found.shards.grid.shape) == ((10, 2), (3, 1))
    assert [axis.step for axis in found.shards.grid.axes] == [8, 6]


def test_shards_may_be_uneven_where_all_are_whole_numbers_of_stored_chunks():
    found = layout([20, 6], [[4, 8, 12], 6], kind="rectilinear", inner=[4, 3])
    assert bounds(found.shards.grid.axes[0]) == [(0, 4), (4, 12), (12, 20)]
    assert bounds(found.grid.axes[0]) == [(4 * n, 4 * n + 4) for n in range(5)]


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, (False, True, False)),
        ({"index_location": "end"}, (False, True, False)),
        ({"index_location": "start"}, (True, True, False)),
        ({"index_codecs": BYTES}, (False, False, False)),
        (
            {"index_codecs": [{"name": "bytes", "configuration": {"endian": "big"}}]},
            (False, False, True),
        ),
    ],
)
def test_the_index_is_where_and_what_the_codec_says(options, expected):
    shards = layout([20], [8], inner=[2], **options).shards
    assert (shards.index_first, shards.has_checksum, shards.is_big_endian) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"index_location": "middle"},
        {"index_codecs": [*INDEX, {"name": "crc32c"}]},
        {"index_codecs": [*BYTES, {"name": "zstd", "configuration": {}}]},
        {"index_codecs": []},
        {"index_codecs": None},
    ],
    ids=str,
)
def test_an_index_that_only_zarr_can_read_makes_the_shard_the_stored_chunk(options):
    found = layout([20], [8], inner=[2], **options)
    assert (found.grid.shape, found.shards) == ((3,), None)


@pytest.mark.parametrize(
    "codecs, is_taken_apart",
    [
        ({"serializer": ShardingCodec(chunk_shape=(2, 3))}, True),
        ({"serializer": ShardingCodec(chunk_shape=(2, 3)), "compressors": [GzipCodec()]}, False),
        ({"serializer": ShardingCodec(chunk_shape=(2, 3)), "compressors": [Crc32cCodec()]}, False),
        (
            {
                "serializer": ShardingCodec(chunk_shape=(2, 2)),
                "filters": [TransposeCodec(order=(1, 0))],
            },
            False,
        ),
        ({"serializer": BytesCodec()}, None),
        (
            {
                "serializer": ShardingCodec(
                    chunk_shape=(4, 3), codecs=[ShardingCodec(chunk_shape=(2, 3))]
                )
            },
            True,
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
def test_only_a_chain_of_shards_alone_can_be_taken_apart(codecs, is_taken_apart):
    store = MemoryStore()
    codecs = {"compressors": None, **codecs}
    zarr.create_array(store, shape=(20, 6), chunks=(8, 6), dtype="f4", **codecs)
    array = read_arrays(store)["data"]
    assert (array.shards is not None) == bool(is_taken_apart)
    assert array.stored_chunk_shape[0] == (
        codecs["serializer"].chunk_shape[0] if is_taken_apart else 8
    )


@pytest.mark.parametrize("inner", [[2], [2, 3, 1], 2, [0, 3], [2, None], [2.0, 3], [True, 3], "ab"])
def test_stored_chunks_that_are_no_shape_are_refused(inner):
    with pytest.raises(GeometryError, match=r"'t' of shape \(20, 6\) has shards of stored chunks"):
        layout([20, 6], [8, 6], inner=inner)


@pytest.mark.parametrize(
    "kind, steps, fact",
    [
        ("regular", [7, 6], "shard of 7 elements along axis 0.*chunks of 2"),
        ("regular", [8, 4], "shard of 4 elements along axis 1.*chunks of 3"),
        ("rectilinear", [[8, 12], [3, 4]], "shard of 4 elements along axis 1.*chunks of 3"),
        ("rectilinear", [[8, 5, 8], 6], "shard of 5 elements along axis 0.*chunks of 2"),
    ],
)
def test_shards_that_their_stored_chunks_do_not_fill_are_refused(kind, steps, fact):
    with pytest.raises(GeometryError, match=fact):
        layout([20, 6], steps, kind=kind, inner=[2, 3])


@pytest.mark.parametrize("inner", [None, [2, 3]])
def test_zarr_reads_codecs_and_keys_where_it_does_not_read_the_grid(inner):
    meta = document([20, 6], [[8, 12], 6], kind="rectilinear", inner=inner)
    full = {
        **meta,
        "node_type": "array",
        "data_type": "float32",
        "fill_value": 0,
        "attributes": {},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
    }
    parsed = ArrayV3Metadata.from_dict(with_regular_grid(full))
    assert parsed.encode_chunk_key((1, 0)) == "c.1.0"
    assert with_regular_grid(document([20], [8])) == document([20], [8])
