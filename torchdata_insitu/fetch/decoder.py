"""Stored bytes of one array into slots."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdata_insitu.errors import DecodeError, PlanError
from torchdata_insitu.fetch.codec_chain import CodecChain, known_chain
from torchdata_insitu.fetch.fetch_errors import cast_error, decode_error
from torchdata_insitu.fetch.frames import FrameError
from torchdata_insitu.fetch.requests import Request
from torchdata_insitu.fetch.stored_metadata import (
    StoredMetadata,
    has_chunks_inside,
    inner_codecs,
    stored_metadata,
)
from torchdata_insitu.fetch.thread_buffers import ThreadBuffers
from torchdata_insitu.fetch.unpacking import unpack
from torchdata_insitu.fetch.zarr_decoding import ZarrDecoding
from torchdata_insitu.geometry.array_geometry import ArrayGeometry
from torchdata_insitu.geometry.value_decoding import CastError
from torchdata_insitu.redaction import reason


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
        codecs = inner_codecs(array, metadata)
        chain = known_chain(metadata, codecs)
        self._array = array
        self._buffers = ThreadBuffers() if buffers is None else buffers
        self._chain: CodecChain | ZarrDecoding = chain or ZarrDecoding(
            metadata, array.stored_chunk_shape, codecs
        )
        self._stages = () if chain is None else chain.stages
        in_place = array.decoding.in_place
        self._straight = chain is not None and chain.as_in_memory and in_place
        self._fill = self._decoded_fill(metadata)
        self._has_chunks_inside = has_chunks_inside(metadata, codecs)

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

    def check_sees_missing(self) -> None:
        """Refuse an array of which chunks may be missing that only Zarr sees.

        Raises:
            PlanError: Stored chunks hold further ones; Zarr fills those that are not there.
        """
        if self._has_chunks_inside:
            raise PlanError(
                f"array {self._array.name!r} has chunks inside its stored chunks, which Zarr "
                f"decodes as a whole ({self._chain}) and fills where some are missing, but "
                "on_missing is 'raise': give on_missing='auto', or leave the array out"
            )

    def raw_target(self, request: Request, out: NDArray[Any]) -> memoryview | None:
        """The bytes of the slot that a read may fill itself: stored bytes are decoded bytes.

        Whoever fills them calls `finish` when exactly all of them have come, and otherwise fails
        the load with `wrong_size`.

        Returns:
            None where the bytes have to pass through a codec, scratch or a checksum.
        """
        if self._stages or not self._goes_straight(request):
            return None
        return memoryview(_bytes_of(out[: request.shape[self._array.sample_axis]]))

    def finish(self, request: Request, out: NDArray[Any]) -> None:
        """Apply CF decoding where `raw_target` was filled."""
        self._array.decoding.finish(out[request.target])

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
            self._unpack(stored, _bytes_of(region), request)
            self.finish(request, out)
        else:
            content = self._unpack(stored, None, request)
            self._place(chain.array(content, request.shape), request, out)

    def missing(self, request: Request, out: NDArray[Any]) -> None:
        """Fill the part of the slot whose stored chunk does not exist.

        The value is the array's fill value, decoded as a stored one would be; a v2 array whose fill
        value is null gets zeros, as from Zarr.

        Raises:
            DecodeError: The fill value does not fit the dtype that was asked for.
        """
        if isinstance(self._fill, CastError):
            raise cast_error(self._array, request, self._fill)
        out[request.target] = self._fill

    def _goes_straight(self, request: Request) -> bool:
        return self._straight and request.direct

    def _place(self, chunk: NDArray[Any], request: Request, out: NDArray[Any]) -> None:
        values = np.moveaxis(chunk, self._array.sample_axis, 0)[request.clip]
        try:
            self._array.decoding.decode(values, out[request.target], self._buffers.cast)
        except CastError as fault:
            raise cast_error(self._array, request, fault) from fault

    def _unpack(
        self, stored: NDArray[np.uint8], target: NDArray[np.uint8] | None, request: Request
    ) -> NDArray[np.uint8]:
        expected = self._expected_bytes(request)
        if not self._stages and stored.size != expected:
            raise self.wrong_size(request, stored.size)
        try:
            return unpack(self._stages, stored, expected, target, self._buffers.decoded)
        except FrameError as fault:
            cause = fault.__cause__ or fault
            raise self._error(request, str(fault), stored.size, cause) from cause

    def _decode_by_zarr(
        self, decoding: ZarrDecoding, stored: NDArray[np.uint8], request: Request
    ) -> NDArray[Any]:
        try:
            return decoding.decode(stored, request.shape)
        except Exception as cause:
            fault = f"{decoding} say {reason(cause)}"
            raise self._error(request, fault, stored.size, cause) from cause

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

    def _decoded_fill(self, metadata: StoredMetadata) -> Any:
        array, fill_value = self._array, metadata.fill_value
        stored = np.empty(1, array.stored_dtype.newbyteorder("="))
        stored[...] = metadata.dtype.default_scalar() if fill_value is None else fill_value
        decoded = np.empty(1, array.dtype)
        try:
            array.decoding.decode(stored, decoded)
        except CastError as fault:
            # Of no account to an array of which every stored chunk is there.
            return CastError(f"of the fill value, {fault}")
        return decoded[0]


def _bytes_of(values: NDArray[Any]) -> NDArray[np.uint8]:
    return values.reshape(-1).view(np.uint8)
