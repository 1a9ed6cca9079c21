"""The texts of failed reads: which array, which key, which chunk, and what to do."""

from torchdata_insitu.errors import DecodeError, ReadError
from torchdata_insitu.fetch.redaction import reason
from torchdata_insitu.fetch.requests import Request
from torchdata_insitu.geometry.array_geometry import ArrayGeometry


def read_error(array: ArrayGeometry, request: Request, cause: BaseException) -> ReadError:
    """A store did not give the bytes of a request; `cause` becomes the cause."""
    error = ReadError(
        f"cannot read {_where(array, request)}: {reason(cause)}; "
        "check that the store can be reached and that the key may be read"
    )
    error.__cause__ = cause
    return error


def decode_error(
    array: ArrayGeometry,
    request: Request,
    fault: str,
    *,
    stored_bytes: int,
    expected_bytes: int,
    cause: BaseException | None = None,
) -> DecodeError:
    """Stored bytes do not decode to the stored chunk that the metadata promises.

    Args:
        array: The array.
        request: What was read.
        fault: What is wrong with the bytes, with the size found where there is one.
        stored_bytes: Bytes in the store under the key.
        expected_bytes: Bytes of the decoded stored chunk according to the metadata.
        cause: What the codec said.
    """
    error = DecodeError(
        f"cannot decode {_where(array, request)}: {fault}; {stored_bytes} bytes are stored, "
        f"{expected_bytes} decoded bytes expected (shape {request.shape}, {array.stored_dtype}): "
        "the object is damaged, or it was written with other metadata; write it again"
    )
    error.__cause__ = cause
    return error


def _where(array: ArrayGeometry, request: Request) -> str:
    return f"array {array.name!r}, key {request.key!r}, chunk {request.coordinates}"
