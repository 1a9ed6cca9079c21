"""The texts of failed reads: which array, which key, which chunk, and what to do."""

import contextlib
import inspect
import traceback

from torchdata_insitu.errors import DecodeError, FetchError, ReadError
from torchdata_insitu.fetch.requests import Request
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.value_decoding import CastError
from torchdata_insitu.redaction import advice, reason, shown

_SUSPENDABLE = (
    inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ITERABLE_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)


def read_error(array: ArrayGeometry, request: Request, cause: BaseException) -> ReadError:
    """A store did not give the bytes of a request; `cause` becomes the cause."""
    error = ReadError(f"cannot read {_where(array, request)}: {reason(cause)}; {advice(cause)}")
    error.__cause__ = shown(cause)
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


def shard_error(
    array: ArrayGeometry, request: Request, fault: str, stored_bytes: int
) -> DecodeError:
    """A shard, or what was read of it, does not hold what it has to."""
    return DecodeError(
        f"cannot read the shard of {_where(array, request)}: {fault} ({stored_bytes} bytes came): "
        "the object is damaged, or it was written with other metadata; write it again"
    )


def cast_error(array: ArrayGeometry, request: Request, fault: CastError) -> DecodeError:
    """A stored value is none of the dtype that was asked for; `fault` becomes the cause."""
    error = DecodeError(
        f"cannot cast {_where(array, request)}: {fault}; open the array with a wider dtype than "
        f"dtype={array.dtype.name!r}, or without dtype"
    )
    error.__cause__ = fault
    return error


def missing_error(array: ArrayGeometry, request: Request) -> ReadError:
    """A stored chunk does not exist, and that is not allowed."""
    return ReadError(
        f"{_where(array, request)} is missing in the store and on_missing is 'raise': write the "
        "chunk, or give on_missing='auto' where absent chunks stand for the fill value"
    )


def after_attempts(error: FetchError, n_attempts: int, elapsed_s: float) -> FetchError:
    """The error of the last attempt, with the number of them."""
    final = type(error)(f"after {n_attempts} attempts in {elapsed_s:.1f} s: {error}")
    final.__cause__ = error.__cause__
    return final.with_traceback(error.__traceback__)


def forget_frames(error: BaseException) -> None:
    """Clear the variables in the tracebacks of an error and its causes.

    Whoever keeps the error would keep the slot of its load alive through them. A coroutine or a
    generator keeps its own: it may be suspended, for an error is raised to all who wait for the
    same thing, and to clear it is to end it under the hands of whoever awaits it.
    """
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and not any(current is other for other in seen):
        seen.append(current)
        for frame, _ in traceback.walk_tb(current.__traceback__):
            if not frame.f_code.co_flags & _SUSPENDABLE:
                with contextlib.suppress(RuntimeError):  # it is running
                    frame.clear()
        current = current.__cause__


def _where(array: ArrayGeometry, request: Request) -> str:
    return f"array {array.name!r}, key {request.key!r}, chunk {request.coordinates}"
