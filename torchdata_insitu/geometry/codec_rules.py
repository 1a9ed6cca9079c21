"""What the metadata of an array ask of a reader, checked before anything of it is built."""

from collections.abc import Iterator, Mapping

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.array_document import ArrayDocument

_FORMAT_3 = 3
_FIELDS_3 = frozenset(
    {
        *("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding"),
        *("fill_value", "codecs", "attributes", "storage_transformers", "dimension_names"),
    }
)
_PICKLE = "pickle"
_OF_OBJECTS = frozenset(
    {"json2", "msgpack", "msgpack2", "vlen-utf8", "vlen-bytes", "vlen-array", "categorize"}
)
# Where format 3 has chains of codecs, each an object or only its name.
_CHAINS = ("codecs", "index_codecs")


def check_codecs(array: ArrayDocument) -> None:
    """Refuse an array that must not or cannot be decoded, whatever is installed.

    A pickle runs what its writer put into it, so that no chain with one is ever built: the payload
    of any codec is bytes from the store. Codecs of text and objects decode to what the payload
    says it is, which need not be the numbers that the array has.

    Args:
        array: Of numbers: its dtype was looked at before.

    Raises:
        GeometryError: A pickle, a codec of objects, a storage transformer, or a field of the
            document that a reader has to understand.

    Example:
        >>> document = {"zarr_format": 2, "shape": [4], "filters": [{"id": "pickle"}]}
        >>> check_codecs(ArrayDocument("t2m", document, {}))
        Traceback (most recent call last):
        torchdata_insitu.errors.GeometryError: array 't2m' has the codec 'pickle' in its metadata,
        which runs whatever code its writer chose, and is never decoded: write the array without
        it, or leave the array out
    """
    if array.zarr_format == _FORMAT_3:
        _check_fields(array)
    for name in codec_names(array):
        kind = name.replace("/", ".").rpartition(".")[2].casefold()
        if kind == _PICKLE:
            raise GeometryError(
                f"{array.label} has the codec {name!r} in its metadata, which runs whatever code "
                "its writer chose, and is never decoded: write the array without it, or leave the "
                "array out"
            )
        if kind in _OF_OBJECTS:
            raise GeometryError(
                f"{array.label} of dtype {array.dtype_text} has the codec {name!r} in its "
                "metadata, which is one of text and objects: write the array without it, or leave "
                "the array out"
            )


def codec_names(array: ArrayDocument) -> Iterator[str]:
    """Every codec that an array's metadata name, those inside other codecs included.

    Example:
        >>> inner = {"codecs": [{"name": "bytes"}, {"name": "zstd"}], "index_codecs": ["crc32c"]}
        >>> chain = [{"name": "sharding_indexed", "configuration": inner}]
        >>> sorted(codec_names(ArrayDocument("t2m", {"zarr_format": 3, "codecs": chain}, {})))
        ['bytes', 'crc32c', 'sharding_indexed', 'zstd']
    """
    document = array.document
    if array.zarr_format == _FORMAT_3:
        left = [("codecs", document.get("codecs"))]
    else:
        left = [("id", document.get("filters")), ("id", document.get("compressor"))]
    # No recursion: how deep a document of a foreign writer goes is the writer's choice.
    while left:
        key, value = left.pop()
        if isinstance(value, str):
            if key in _CHAINS:
                yield value
        elif isinstance(value, list):
            left += [(key, item) for item in value]
        elif isinstance(value, Mapping):
            yield from (value[key] for key in ("id", "name") if isinstance(value.get(key), str))
            left += value.items()


def _check_fields(array: ArrayDocument) -> None:
    transformers = array.document.get("storage_transformers")
    if transformers:
        raise GeometryError(
            f"{array.label} has storage_transformers in its metadata, {transformers!r:.200}: its "
            "chunks are not where their keys say, and no transformer is read; write the array "
            "without them"
        )
    for key, value in array.document.items():
        optional = isinstance(value, Mapping) and value.get("must_understand") is False
        if key not in _FIELDS_3 and not optional:
            raise GeometryError(
                f"{array.label} has the field {key!r} in its metadata, {value!r:.200}, which is "
                "none of Zarr format 3 and not marked with must_understand false: without it the "
                "values may be others; open the array with the software that wrote it"
            )
