"""What the header of a compressed frame states, read before anything is decoded.

Formats: zstd RFC 8878 section 3.1.1; blosc 1 `README_CHUNK_FORMAT.rst`; numcodecs writes LZ4 blocks
behind a 4-byte size.
"""

from collections.abc import Callable

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_BLOSC_HEADER = 16
_LZ4_HEADER = 4
_ZSTD_LONGEST_HEADER = 18


class FrameError(ValueError):
    """A frame whose header and length contradict each other."""


def zstd_stated_size(payload: memoryview) -> int | None:
    """Decoded bytes that the first zstd frame states.

    Returns:
        None where the payload does not begin with a zstd frame or the frame does not say.
    """
    head = bytes(payload[:_ZSTD_LONGEST_HEADER])
    if head[:4] != _ZSTD_MAGIC or len(head) < 6:  # noqa: PLR2004
        return None
    descriptor = head[4]
    single_segment = descriptor >> 5 & 1
    size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
    dictionary_bytes = (0, 1, 2, 4)[descriptor & 3]
    start = 5 + (1 - single_segment) + dictionary_bytes
    field = head[start : start + size_bytes]
    if not size_bytes or len(field) < size_bytes:
        return None
    size = int.from_bytes(field, "little")
    return size + 256 if size_bytes == 2 else size  # noqa: PLR2004


def blosc_stated_size(payload: memoryview) -> int:
    """Decoded bytes that a blosc header states.

    numcodecs hands blosc a pointer without a length, so that a cut payload is read past its end:
    the length must be checked here, whatever decodes afterwards.

    Raises:
        FrameError: The payload is shorter than a header, or than the header states.
    """
    if len(payload) < _BLOSC_HEADER:
        msg = f"a blosc header has {_BLOSC_HEADER} bytes, the payload {len(payload)}"
        raise FrameError(msg)
    stored = int.from_bytes(payload[12:16], "little")
    if not _BLOSC_HEADER <= stored <= len(payload):
        msg = f"the blosc header states {stored} stored bytes, the payload has {len(payload)}"
        raise FrameError(msg)
    return int.from_bytes(payload[4:8], "little")


def lz4_stated_size(payload: memoryview) -> int:
    """Decoded bytes stated in front of an LZ4 block as numcodecs writes it.

    Raises:
        FrameError: The payload is too short to state a size.
    """
    if len(payload) <= _LZ4_HEADER:
        msg = f"an lz4 payload has more than {_LZ4_HEADER} bytes, this one {len(payload)}"
        raise FrameError(msg)
    return int.from_bytes(payload[:_LZ4_HEADER], "little")


STATED_SIZE: dict[str, Callable[[memoryview], int | None]] = {
    "zstd": zstd_stated_size,
    "blosc": blosc_stated_size,
    "lz4": lz4_stated_size,
}
"""By compression; gzip and zlib state no size in front."""
