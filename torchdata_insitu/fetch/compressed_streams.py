"""Decompression of formats that do not say how much they decode to."""

import bz2
import lzma
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.fetch.frames import FrameError

# What comes behind a stream is handed on in pieces: of all that it is given, a decompressor copies
# what it does not need.
_PIECE_BYTES = 65_536


@dataclass(frozen=True)
class _Format:
    decompressor: Callable[[], Any]
    may_repeat: bool
    """Whether several streams behind each other are one content."""
    may_be_padded: bool
    """Whether null bytes may follow."""


_FORMATS = {
    "gzip": _Format(lambda: zlib.decompressobj(16 + zlib.MAX_WBITS), True, True),
    "zlib": _Format(zlib.decompressobj, False, False),
    "bz2": _Format(bz2.BZ2Decompressor, True, False),
    "lzma": _Format(lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), True, True),
}
STREAMS = frozenset(_FORMATS)
"""The formats: "gzip", "zlib", "bz2", "lzma" (xz)."""


def decompressed_pieces(name: str, payload: NDArray[np.uint8], most: int) -> list[bytes]:
    """All content of the streams that make up a payload, and never much more than is expected.

    A few kilobytes can decode to gigabytes, so that what is decoded ends with `most`.

    Args:
        name: One of `STREAMS`.
        payload: The compressed bytes, all of them.
        most: Bytes that the content may have.

    Raises:
        FrameError: The content is longer, the payload ends before its stream, or something else
            than a stream follows.
        Exception: What the decompressor raises at damaged bytes.
    """
    form = _FORMATS[name]
    rest = memoryview(payload)
    pieces: list[bytes] = []
    size = 0
    taken = len(rest)
    while rest:
        stream = form.decompressor()
        while not stream.eof:
            if not rest:
                raise FrameError(f"the payload ends before the {name} stream does")
            given = rest[:taken]
            pieces.append(stream.decompress(given, most + 1 - size))
            size += len(pieces[-1])
            if size > most:
                raise FrameError(f"it decodes to more than {most} bytes")
            rest = rest[len(given) - (len(stream.unused_data) if stream.eof else 0) :]
        taken = _PIECE_BYTES
        if form.may_be_padded and rest and not rest[0]:
            rest = _without_padding(rest)
        if rest and not form.may_repeat:
            raise FrameError(f"{len(rest)} bytes follow the end of the {name} stream")
    return pieces


def _without_padding(rest: memoryview) -> memoryview:
    used = np.flatnonzero(np.frombuffer(rest, np.uint8))
    return rest[used[0] :] if used.size else rest[:0]
