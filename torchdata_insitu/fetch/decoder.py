"""Stored bytes of one array into slots."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.errors import DecodeError
from torchdata_insitu.fetch.codec_chain import CodecChain, known_chain, outermost_compression
from torchdata_insitu.fetch.fetch_errors import decode_error
from torchdata_insitu.fetch.frames import STATED_SIZE, FrameError
from torchdata_insitu.fetch.requests import Request
from torchdata_insitu.fetch.stored_metadata import stored_metadata
from torchdata_insitu.fetch.thread_buffers import ThreadBuffers
from torchdata_insitu.fetch.zarr_decoding import ZarrDecoding
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.redaction import reason

_CHECKSUM_BYTES = 4


class ChunkDecoder:
    """Decodes the stored chunks of one array, from any number of threads at once.

    Where the chain is known and the stored chunk lies in memory as it lies in the slot, the codec
    writes into the slot. Otherwise it writes into scratch of the thread, and one copy clips,
    transposes and converts. What the list of known chains lacks, Zarr decodes.

    Sizes are checked before anything is decoded: codecs leave the rest of a buffer untouched after
    a short payload, and a slot must never show the rows of another chunk.

    blosc's own threads are `numcodecs.blosc.use_threads`; Zarr turns them off for the process, and
    this class leaves that setting to the user.
    """

    def __init__(self, array: ArrayGeometry, buffers: ThreadBuffers | None = None) -> None:
        metadata = stored_metadata(array)
        chain = known_chain(metadata)
        self._array = array
        self._buffers = ThreadBuffers() if buffers is None else buffers
        self._chain: CodecChain | ZarrDecoding = chain or ZarrDecoding(
            metadata, array.stored_chunk_shape
        )
        self._compression = outermost_compression(metadata) if chain is None else chain.compression
        in_place = array.cf is None or array.cf.in_place
        self._straight = chain is not None and chain.as_in_memory and in_place
        self._checksum = _crc32c() if chain is not None and chain.checksum else None
        self._fill = self._decoded_fill(metadata.fill_value, metadata.dtype.default_scalar())

    @property
    def path(self) -> str:
        """One line: which codecs, and whether they write into the slot."""
        array = self._array
        axis = array.sample_axis
        stored = array.stored_chunk_shape
        as_slot = set(stored[:axis]) <= {1} and stored[:axis] + stored[axis + 1 :] == (
            array.field_shape
        )
        if self._straight and as_slot:
            return f"{self._chain}, straight into the slot"
        return f"{self._chain}, through scratch"

    def raw_target(self, request: Request, out: NDArray[Any]) -> memoryview | None:
        """The bytes of the slot that a read may fill itself: stored bytes are decoded bytes.

        Whoever fills them calls `finish` when exactly all of them have come, and otherwise fails
        the load with `wrong_size`.

        Returns:
            None where the bytes have to pass through a codec, scratch or a checksum.
        """
        if self._compression or self._checksum or not self._goes_straight(request):
            return None
        return memoryview(_bytes_of(out[: request.shape[self._array.sample_axis]]))

    def finish(self, request: Request, out: NDArray[Any]) -> None:
        """Apply CF decoding where `raw_target` was filled."""
        if self._array.cf is not None:
            values = out[request.target]
            self._array.cf.decode(values, values)

    def wrong_size(self, request: Request, stored_bytes: int) -> DecodeError:
        """The error of plain bytes that are too many or too few."""
        expected = self._expected_bytes(request)
        fault = f"the stored chunk has {stored_bytes} bytes instead of {expected}"
        return self._error(request, fault, stored_bytes)

    def decode(
        self, payload: NDArray[np.uint8] | bytes | memoryview, request: Request, out: NDArray[Any]
    ) -> None:
        """Decode one stored chunk into its part of the slot, CF packing included.

        Args:
            payload: The stored bytes, all of them. They may be overwritten by the next read of this
                thread: nothing keeps a reference.
            request: What was read.
            out: The slot, of the array's `chunk_shape` and `dtype`.

        Raises:
            DecodeError: The bytes are not the stored chunk; the slot then holds anything.
        """
        stored = np.frombuffer(payload, np.uint8)
        chain = self._chain
        if isinstance(chain, ZarrDecoding):
            self._place(self._decode_by_zarr(chain, stored, request), request, out)
        elif self._goes_straight(request):
            region = out[: request.shape[self._array.sample_axis]]
            self._unpack(chain, stored, _bytes_of(region), request)
            self.finish(request, out)
        else:
            content = self._unpack(chain, stored, None, request)
            chunk = content.view(chain.dtype).reshape(request.shape, order=chain.order)
            self._place(chunk, request, out)

    def missing(self, request: Request, out: NDArray[Any]) -> None:
        """Fill the part of the slot whose stored chunk does not exist.

        The value is the array's fill value, decoded as a stored one would be; a v2 array whose fill
        value is null gets zeros, as from Zarr.
        """
        out[request.target] = self._fill

    def _goes_straight(self, request: Request) -> bool:
        return self._straight and request.direct

    def _place(self, chunk: NDArray[Any], request: Request, out: NDArray[Any]) -> None:
        values = np.moveaxis(chunk, self._array.sample_axis, 0)[request.clip]
        target = out[request.target]
        if self._array.cf is None:
            target[...] = values
        else:
            self._array.cf.decode(values, target)

    def _unpack(
        self,
        chain: CodecChain,
        stored: NDArray[np.uint8],
        target: NDArray[np.uint8] | None,
        request: Request,
    ) -> NDArray[np.uint8]:
        """Decompress all of `stored`, which gives exactly the bytes of the stored chunk.

        Args:
            chain: The chain of the array.
            stored: What is in the store.
            target: Where to write; None for wherever it costs least, for a copy that follows.
            request: What was read.

        Returns:
            `target`, or memory that this thread uses again.
        """
        expected = self._expected_bytes(request)
        payload = stored
        if self._checksum is not None:
            payload = stored[:-_CHECKSUM_BYTES]
            if self._checksum(payload) != bytes(stored[-_CHECKSUM_BYTES:]):
                raise self._error(request, "its crc32c checksum does not match", stored.size)
        codec = chain.codec
        if codec is None:
            if payload.size != expected:
                raise self.wrong_size(request, stored.size)
            if target is None:
                return payload
            target[...] = payload
            return target
        stated = self._stated_size(payload, request, stored.size)
        try:
            if stated == expected:
                # A frame that states exactly this size fills the buffer or fails, and a further
                # frame behind it finds no room: nothing of what was in the buffer stays.
                target = self._buffers.decoded(expected) if target is None else target
                codec.decode(payload, out=target)
                return target
            decoded = np.frombuffer(codec.decode(payload), np.uint8)
        except Exception as cause:
            fault = f"{chain.compression} says {reason(cause)}"
            raise self._error(request, fault, stored.size, cause) from cause
        if decoded.size != expected:
            raise self._wrong_decoded_size(request, decoded.size, stored.size)
        if target is None:
            return decoded
        target[...] = decoded
        return target

    def _stated_size(
        self, payload: NDArray[np.uint8], request: Request, stored_bytes: int
    ) -> int | None:
        """The decoded size in the header; None where only decoding tells.

        Raises:
            DecodeError: The header rules out the expected size, or it contradicts itself.
        """
        compression = self._compression
        read_header = STATED_SIZE.get(compression) if compression is not None else None
        if read_header is None:
            return None
        try:
            stated = read_header(memoryview(payload))
        except FrameError as cause:
            raise self._error(request, str(cause), stored_bytes, cause) from cause
        if isinstance(self._chain, ZarrDecoding) or stated is None:
            return None
        expected = self._expected_bytes(request)
        # Several zstd frames may follow each other, so that only a larger first one is final.
        if stated > expected or (stated < expected and compression != "zstd"):
            raise self._wrong_decoded_size(request, stated, stored_bytes)
        return stated

    def _decode_by_zarr(
        self, decoding: ZarrDecoding, stored: NDArray[np.uint8], request: Request
    ) -> NDArray[Any]:
        self._stated_size(stored, request, stored.size)
        try:
            chunk = decoding.decode(stored, request.shape)
        except Exception as cause:
            fault = f"{decoding} say {reason(cause)}"
            raise self._error(request, fault, stored.size, cause) from cause
        if chunk.shape != request.shape:
            raise self._wrong_decoded_size(request, chunk.nbytes, stored.size)
        return chunk

    def _wrong_decoded_size(self, request: Request, decoded: int, stored: int) -> DecodeError:
        expected = self._expected_bytes(request)
        fault = f"it decodes to {decoded} bytes instead of {expected}"
        return self._error(request, fault, stored)

    def _error(
        self, request: Request, fault: str, stored: int, cause: BaseException | None = None
    ) -> DecodeError:
        return decode_error(
            self._array,
            request,
            fault,
            stored_bytes=stored,
            expected_bytes=self._expected_bytes(request),
            cause=cause,
        )

    def _expected_bytes(self, request: Request) -> int:
        return math.prod(request.shape) * self._array.stored_dtype.itemsize

    def _decoded_fill(self, fill_value: Any, default: Any) -> Any:
        array = self._array
        stored = np.empty(1, array.stored_dtype.newbyteorder("="))
        stored[...] = default if fill_value is None else fill_value
        if array.cf is None:
            return stored.astype(array.dtype)[0]
        decoded = np.empty(1, array.dtype)
        array.cf.decode(stored, decoded)
        return decoded[0]


def _bytes_of(values: NDArray[Any]) -> NDArray[np.uint8]:
    return values.reshape(-1).view(np.uint8)


def _crc32c() -> Any:
    # Comes with Zarr; only arrays with the checksum need it.
    from google_crc32c import value  # noqa: PLC0415

    def checksum(payload: NDArray[np.uint8]) -> bytes:
        return int(value(payload)).to_bytes(_CHECKSUM_BYTES, "little")

    return checksum
