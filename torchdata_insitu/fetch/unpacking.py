"""Stored bytes to the bytes of numbers: compressions and checksums, with every size checked."""

from collections.abc import Callable

import numpy as np
from google_crc32c import value as crc32c
from numcodecs import blosc, lz4, zstd
from numpy.typing import NDArray

from torchdata_insitu.fetch.codec_chain import CHECKSUM
from torchdata_insitu.fetch.compressed_streams import STREAMS, decompressed_pieces
from torchdata_insitu.fetch.frames import (
    FrameError,
    blosc_stated_size,
    lz4_stated_size,
    zstd_stated_size,
    zstd_total_size,
)
from torchdata_insitu.redaction import reason

_CHECKSUM_BYTES = 4
# How far a stream is followed that says nothing of its size, so that the error can tell it.
_MOST_TIMES = 4
_MOST_MORE = 4096
# Not the `decode` of its codecs, which looks at each array in Python first to see what it is.
_DECOMPRESS: dict[str, Callable[..., bytes]] = {
    "zstd": zstd.decompress,
    "blosc": blosc.decompress,
    "lz4": lz4.decompress,
}
_STATED_SIZE: dict[str, Callable[[memoryview], int | None]] = {
    "zstd": zstd_total_size,
    "blosc": blosc_stated_size,
    "lz4": lz4_stated_size,
}


def unpack(
    stages: tuple[str, ...],
    stored: NDArray[np.uint8],
    n_bytes: int,
    target: NDArray[np.uint8] | None,
    scratch: Callable[[int], NDArray[np.uint8]],
) -> NDArray[np.uint8]:
    """Undo all stages of a `CodecChain`, which gives exactly the bytes of a stored chunk.

    Sizes are checked before anything is written: codecs leave the rest of a buffer untouched after
    a short payload. Whatever a payload says of itself, this uses no more memory than a few times
    `n_bytes`.

    Args:
        stages: Of the chain.
        stored: What is in the store.
        n_bytes: Bytes of the stored chunk.
        target: Where to write; None for wherever it costs least, for a copy that follows.
        scratch: Gives memory of a size that this thread may use until the next call.

    Returns:
        `target`, or `stored` itself, or memory that this thread uses again.

    Raises:
        FrameError: The bytes are not a stored chunk; what a codec said is the cause.
    """
    content = stored
    for number in reversed(range(len(stages))):
        if stages[number] == CHECKSUM:
            content = _checked(content)
            continue
        size = n_bytes + _CHECKSUM_BYTES * number  # only checksums come before a compression
        into = target if number == 0 else None
        content = _decompressed(stages[number], content, size, into, scratch)
    if content.size != n_bytes:
        raise _wrong_size(content.size, n_bytes)
    if target is None or content is target:
        return content
    target[...] = content
    return target


def decompress(name: str, payload: NDArray[np.uint8], most: int) -> NDArray[np.uint8]:
    """Undo one compression where the decoded size is not known beforehand.

    Args:
        name: Of the compression, as in `CodecChain.stages`.
        payload: The compressed bytes, all of them.
        most: Bytes to which the payload may decode. Only zstd frames that state no size are decoded
            whatever they decode to.

    Raises:
        FrameError: They are damaged or would decode to more; what the codec said is the cause.
    """
    try:
        if name in STREAMS:
            return np.frombuffer(b"".join(decompressed_pieces(name, payload, most)), np.uint8)
        _check_at_most(_STATED_SIZE[name](memoryview(payload)), most)
        return np.frombuffer(_DECOMPRESS[name](payload), np.uint8)
    except FrameError:
        raise
    except Exception as cause:
        raise _said(name, cause) from cause


def _checked(payload: NDArray[np.uint8]) -> NDArray[np.uint8]:
    content = payload[:-_CHECKSUM_BYTES]
    found = crc32c(content.tobytes() if not content.size else content)
    if int(found).to_bytes(_CHECKSUM_BYTES, "little") != bytes(payload[-_CHECKSUM_BYTES:]):
        raise FrameError("its crc32c checksum does not match")
    return content


def _decompressed(
    name: str,
    payload: NDArray[np.uint8],
    size: int,
    target: NDArray[np.uint8] | None,
    scratch: Callable[[int], NDArray[np.uint8]],
) -> NDArray[np.uint8]:
    try:
        if name in STREAMS:
            pieces = decompressed_pieces(name, payload, _MOST_TIMES * size + _MOST_MORE)
            return _placed(pieces, size, target, scratch)
        _check_stated(name, memoryview(payload), size)
        # Frames that state this size together fill the buffer or fail, and of those that do not
        # say numcodecs compares what was written with what there is room for.
        into = scratch(size) if target is None else target
        _DECOMPRESS[name](payload, into)
    except FrameError:
        raise
    except Exception as cause:
        raise _said(name, cause) from cause
    return into


def _check_stated(name: str, payload: memoryview, size: int) -> None:
    # A frame behind one that is large enough finds no room in the buffer.
    if name == "zstd" and zstd_stated_size(payload) == size:
        return
    stated = _STATED_SIZE[name](payload)
    if stated is not None and stated != size:
        raise _wrong_size(stated, size)


def _check_at_most(stated: int | None, most: int) -> None:
    if stated is not None and stated > most:
        raise FrameError(f"it decodes to {stated} bytes, more than {most}")


def _placed(
    pieces: list[bytes],
    size: int,
    target: NDArray[np.uint8] | None,
    scratch: Callable[[int], NDArray[np.uint8]],
) -> NDArray[np.uint8]:
    n_bytes = sum(map(len, pieces))
    if n_bytes != size:
        raise _wrong_size(n_bytes, size)
    if target is None and len(pieces) == 1:
        return np.frombuffer(pieces[0], np.uint8)
    into = scratch(size) if target is None else target
    start = 0
    for piece in pieces:
        into[start : start + len(piece)] = np.frombuffer(piece, np.uint8)
        start += len(piece)
    return into


def _wrong_size(n_bytes: int, expected: int) -> FrameError:
    return FrameError(f"it decodes to {n_bytes} bytes instead of {expected}")


def _said(name: str, cause: Exception) -> FrameError:
    return FrameError(f"{name} says {reason(cause)}")
