"""What the header of a compressed frame states, read before anything is decoded.

Formats: zstd RFC 8878 sections 3.1.1 and 3.1.2; blosc 1 `README_CHUNK_FORMAT.rst`; numcodecs writes
LZ4 blocks behind a 4-byte size.
"""

from typing import NamedTuple

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"
_ZSTD_LONGEST_HEADER = 18
_BLOSC_HEADER = 16
_LZ4_HEADER = 4
# LZ4 counts in 32 bits, of which numcodecs drops the others: LZ4_MAX_INPUT_SIZE of its `lz4.h`.
_LZ4_LONGEST = 0x7E000000


class FrameError(ValueError):
    """Stored bytes that contradict themselves, or that are not as many as they have to be."""


class _ZstdHeader(NamedTuple):
    """Of one frame: its own length, the decoded size if it is stated, and the checksum's bytes."""

    n_bytes: int
    size: int | None
    n_checksum: int


def _zstd_header(payload: memoryview) -> _ZstdHeader | None:
    head = bytes(payload[:_ZSTD_LONGEST_HEADER])
    if head[:4] != _ZSTD_MAGIC or len(head) < 6:  # noqa: PLR2004
        return None
    descriptor = head[4]
    single_segment = descriptor >> 5 & 1
    size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
    start = 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3]
    field = head[start : start + size_bytes]
    if len(field) < size_bytes:
        return None
    size = int.from_bytes(field, "little") + (256 if size_bytes == 2 else 0)  # noqa: PLR2004
    return _ZstdHeader(start + size_bytes, size if size_bytes else None, 4 if descriptor & 4 else 0)


def zstd_stated_size(payload: memoryview) -> int | None:
    """Decoded bytes that the first zstd frame states.

    Returns:
        None where the payload does not begin with a zstd frame or the frame does not say.
    """
    header = _zstd_header(payload)
    return None if header is None else header.size


def zstd_total_size(payload: memoryview) -> int | None:
    """Decoded bytes that all zstd frames of a payload state together.

    Returns:
        None where one of them does not say.

    Raises:
        FrameError: The payload is not a row of whole frames.
    """
    total: int | None = 0
    rest = payload
    while rest:
        if bytes(rest[1:4]) == _ZSTD_SKIPPABLE and rest[0] >> 4 == 5:  # noqa: PLR2004
            rest = _after(rest, 8 + int.from_bytes(rest[4:8], "little"))
            continue
        header = _zstd_header(rest)
        if header is None:
            raise FrameError("it is not a zstd frame")
        rest = _after(rest, header.n_bytes)
        is_last = False
        while not is_last:
            block = int.from_bytes(rest[:3], "little")
            is_last, is_repeated = bool(block & 1), block >> 1 & 3 == 1
            rest = _after(rest, 3 + (1 if is_repeated else block >> 3))
        rest = _after(rest, header.n_checksum)
        total = None if total is None or header.size is None else total + header.size
    return total


def _after(rest: memoryview, n_bytes: int) -> memoryview:
    if len(rest) < n_bytes:
        raise FrameError(f"a zstd frame ends {n_bytes - len(rest)} bytes behind the payload")
    return rest[n_bytes:]


def blosc_stated_size(payload: memoryview) -> int:
    """Decoded bytes that a blosc header states.

    numcodecs hands blosc a pointer without a length, so that a cut payload is read past its end:
    the length must be checked here, whatever decodes afterwards.

    Raises:
        FrameError: The payload is shorter than a header, or not as long as the header states.
    """
    if len(payload) < _BLOSC_HEADER:
        msg = f"a blosc header has {_BLOSC_HEADER} bytes, the payload {len(payload)}"
        raise FrameError(msg)
    stored = int.from_bytes(payload[12:16], "little")
    if stored < _BLOSC_HEADER or stored != len(payload):
        msg = f"the blosc header states {stored} stored bytes, the payload has {len(payload)}"
        raise FrameError(msg)
    return int.from_bytes(payload[4:8], "little")


def lz4_stated_size(payload: memoryview) -> int:
    """Decoded bytes stated in front of an LZ4 block as numcodecs writes it.

    Raises:
        FrameError: The payload is too short to state a size, or too long to be one block.
    """
    if len(payload) <= _LZ4_HEADER:
        msg = f"an lz4 payload has more than {_LZ4_HEADER} bytes, this one {len(payload)}"
        raise FrameError(msg)
    if len(payload) > _LZ4_LONGEST:
        msg = f"an lz4 payload has at most {_LZ4_LONGEST} bytes, this one {len(payload)}"
        raise FrameError(msg)
    return int.from_bytes(payload[:_LZ4_HEADER], "little")
