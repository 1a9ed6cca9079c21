"""How an array is cut: from its metadata document to the grid of its stored chunks."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.array_document import ArrayDocument
from torchdata_insitu.geometry.chunk_grid import AxisChunks, ChunkGrid
from torchdata_insitu.geometry.shard_layout import ShardLayout

_FORMAT_2 = 2
_SHARDING = "sharding_indexed"
_INDEX_CODECS = (["bytes"], ["bytes", "crc32c"])
_MOST_CHUNKS = 10_000_000


class ChunkLayout(NamedTuple):
    """The grid of the stored chunks and, where several lie in one key, of the shards."""

    grid: ChunkGrid
    shards: ShardLayout | None


def chunk_layout(array: ArrayDocument) -> ChunkLayout:
    """Read the stored chunks of an array off its metadata.

    The stored chunk of a sharded array is the inner one, if its codecs are `sharding_indexed` alone
    and the index is plain integers. Of any other chain only Zarr knows how to read a part, so that
    the shard is the stored chunk. So it is for what lies inside an inner chunk that is sharded once
    more: the inner chunk is decoded as one.

    Raises:
        GeometryError: There is no such grid, or it does not fit the shape.

    Example:
        >>> settings = {"kind": "inline", "chunk_shapes": [[31, [30, 2]], 4]}
        >>> grid = {"name": "rectilinear", "configuration": settings}
        >>> document = {"zarr_format": 3, "shape": [91, 8], "chunk_grid": grid}
        >>> chunk_layout(ArrayDocument("t2m", document, {})).grid.shape
        (3, 2)
    """
    axes = _key_axes(array)
    sharding = _sharding(array)
    if sharding is None:
        return ChunkLayout(ChunkGrid(axes), None)
    inner = sharding.get("chunk_shape")
    if not isinstance(inner, list) or len(inner) != len(axes) or not all(map(_is_size, inner)):
        raise GeometryError(
            f"{array.label} of shape {array.shape} has shards of stored chunks {inner!r} in its "
            "metadata: one whole number for each axis"
        )
    for number, (axis, size) in enumerate(zip(axes, inner, strict=True)):
        uneven = next((n for n in _sizes(axis) if n % size), None)
        if uneven is not None:
            raise GeometryError(
                f"{array.label} has a shard of {uneven} elements along axis {number}, which its "
                f"stored chunks of {size} do not divide: its metadata are damaged"
            )
    index_codecs = array.codecs_of(sharding.get("index_codecs"))
    return ChunkLayout(
        ChunkGrid(
            tuple(
                AxisChunks.regular(axis.length, size)
                for axis, size in zip(axes, inner, strict=True)
            )
        ),
        ShardLayout(
            grid=ChunkGrid(axes),
            index_first=sharding.get("index_location") == "start",
            has_checksum=len(index_codecs) > 1,
            is_big_endian=index_codecs[0][1].get("endian") == "big",
        ),
    )


def with_regular_grid(document: dict[str, Any]) -> dict[str, Any]:
    """An array's metadata with a regular grid in place of a rectilinear one.

    Zarr parses rectilinear grids only where its user has turned that on. What it is asked here, the
    codecs and the keys of chunks, depends on no grid.

    Example:
        >>> with_regular_grid({"shape": [91], "chunk_grid": {"name": "rectilinear"}})["chunk_grid"]
        {'name': 'regular', 'configuration': {'chunk_shape': [1]}}
    """
    array = ArrayDocument("", document, {})
    if not array.is_rectilinear:
        return document
    # Zarr checks that the chunks of each key hold a whole number of inner ones.
    inner = next((s.get("chunk_shape") for name, s in array.codecs() if name == _SHARDING), None)
    settings = {"chunk_shape": [1] * len(array.shape) if inner is None else inner}
    return {**document, "chunk_grid": {"name": "regular", "configuration": settings}}


def _key_axes(array: ArrayDocument) -> tuple[AxisChunks, ...]:
    """What each key of the store covers."""
    shape = array.shape
    if array.zarr_format == _FORMAT_2:
        steps: Any = array.document.get("chunks")
    else:
        grid = array.document.get("chunk_grid")
        named = grid if isinstance(grid, dict) else {"name": grid}
        settings = named.get("configuration")
        settings = settings if isinstance(settings, dict) else {}
        match named.get("name"):
            case "regular":
                steps = settings.get("chunk_shape")
            case "rectilinear":
                if settings.get("kind") != "inline":
                    raise GeometryError(
                        f"{array.label} has a rectilinear chunk grid of the kind "
                        f"{settings.get('kind')!r:.80} in its metadata: only sizes that stand "
                        "there themselves, of the kind 'inline', are read"
                    )
                steps = settings.get("chunk_shapes")
            case name:
                raise GeometryError(
                    f"{array.label} has the chunk grid {name!r}: regular and rectilinear are read"
                )
    if not isinstance(steps, list) or len(steps) != len(shape):
        raise GeometryError(
            f"{array.label} of shape {shape} has the chunks {steps!r} in its metadata: one entry "
            "for each axis"
        )
    return tuple(
        _axis_chunks(array, *item) for item in zip(range(len(shape)), shape, steps, strict=True)
    )


def _axis_chunks(array: ArrayDocument, number: int, length: int, step: Any) -> AxisChunks:
    if isinstance(step, list) and array.is_rectilinear:
        try:
            return AxisChunks.of_sizes(length, _expanded(step, length))
        except (GeometryError, TypeError, ValueError) as error:
            raise GeometryError(f"{array.label}, axis {number}: {error}") from error
    # Writers give an axis of no elements chunks of none.
    if _is_size(step) or (length == 0 and step == 0):
        return AxisChunks.regular(length, max(1, step))
    raise GeometryError(
        f"{array.label} of shape {array.shape} has chunks of {step!r} along axis {number}: a whole "
        "number from 1 on"
    )


def _expanded(sizes: Sequence[Any], length: int) -> list[int]:
    """Sizes one by one, where a pair in the metadata stands for a size and how often it comes.

    What begins past the end of the axis is left out: it holds nothing, and there may be any number.
    """
    runs = [item if isinstance(item, list) else [item, 1] for item in sizes]
    if any(len(run) != 2 or not all(map(_is_size, run)) for run in runs):  # noqa: PLR2004
        raise ValueError(f"chunk sizes are whole numbers or pairs of size and count: {sizes!r:.80}")
    expanded: list[int] = []
    covered = 0
    for size, count in runs:
        n_chunks = min(count, -(-(length - covered) // size))
        if len(expanded) + n_chunks > _MOST_CHUNKS:
            raise ValueError(f"more than {_MOST_CHUNKS} chunk sizes along one axis")
        expanded += [size] * max(0, n_chunks)
        covered += size * max(0, n_chunks)
    return expanded


def _sizes(axis: AxisChunks) -> Sequence[int]:
    # Of an axis without elements the step says nothing.
    if axis.step is not None and axis.length:
        return (axis.step,)
    return sorted({axis.stored_size(number) for number in range(axis.n_chunks)})


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 1


def _sharding(array: ArrayDocument) -> dict[str, Any] | None:
    """Configuration of the codec whose inner chunks can be read one by one."""
    codecs = array.codecs()
    if [name for name, _ in codecs] != [_SHARDING]:
        return None
    settings = dict(codecs[0][1])
    index_codecs = [name for name, _ in array.codecs_of(settings.get("index_codecs"))]
    is_placed = settings.get("index_location", "end") in ("start", "end")
    return settings if is_placed and index_codecs in _INDEX_CODECS else None
