"""Values that show every bit that is lost, and fill values."""

import numpy as np

from tests.contracts.generated.cases import Case

_PAYLOAD = {4: 0x7FC0A55A, 8: 0x7FF8A5A5000055AA}
"""Quiet NaNs that are not the one that numpy makes, by bytes."""


def slot_dtype(dtype: np.dtype) -> np.dtype:
    """What a batch holds: points in time and spans of it as whole numbers."""
    native = dtype.newbyteorder("=")
    return np.dtype("i8") if native.kind in "Mm" else native


def written_values(case: Case, dtype: np.dtype, shape: tuple[int, ...], what: str) -> np.ndarray:
    """Values of a native dtype from the seed of the case, in every bit pattern there is."""
    rng = np.random.default_rng(case.rng(what).getrandbits(64))
    n = int(np.prod(shape))
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if case.filters == "fixedscaleoffset":
        # What the filter gives back exactly, in one byte too.
        return rng.integers(3, 53, shape).astype(dtype)
    flat = rng.integers(0, 256, n * dtype.itemsize, dtype=np.uint8).view(dtype)
    parts = flat.view(flat.real.dtype) if dtype.kind == "c" else flat
    special = _special(parts.dtype)
    chosen = rng.choice(parts.size, size=max(1, parts.size // 3), replace=False)
    unsigned = f"u{parts.itemsize}"
    bits = np.resize(rng.permutation(special.view(unsigned)), chosen.size)
    # As whole numbers: a signalling NaN that is handled as a number becomes a quiet one.
    parts.view(unsigned)[chosen] = bits
    return flat.reshape(shape)


def _special(dtype: np.dtype) -> np.ndarray:
    """Values of a dtype that are easily changed on their way."""
    if dtype.kind == "f":
        unsigned = np.dtype(f"u{dtype.itemsize}")
        info = np.finfo(dtype)
        numbers = np.array(
            [0.0, -0.0, np.inf, -np.inf, info.max, info.min, info.tiny, -info.tiny], dtype
        )
        quiet = np.array(np.nan, dtype).view(unsigned)
        sign = unsigned.type(1 << (8 * dtype.itemsize - 1))
        infinity = np.array(np.inf, dtype).view(unsigned)
        smallest = unsigned.type(1)
        bits = [
            quiet,
            quiet | sign,
            quiet | unsigned.type(0x55),
            # Signalling: the highest bit of the fraction is not set.
            infinity | unsigned.type(0x2A),
            infinity | sign | smallest,
            # Denormal: the smallest, and the largest.
            smallest,
            smallest | sign,
            np.array(info.tiny, dtype).view(unsigned) - smallest,
        ]
        return np.concatenate([numbers, np.array(bits, unsigned).view(dtype)])
    kind = "i8" if dtype.kind in "Mm" else dtype
    info = np.iinfo(kind)
    return np.array([info.min, info.max, 0, 1, info.max - 1], kind).view(dtype)


def fill_value(case: Case, dtype: np.dtype) -> np.ndarray:
    """What stands for a missing chunk, of a native dtype and no axes."""
    match dtype.kind:
        case "f":
            return _float_fill(case.fill, dtype)
        case "c":
            part = _float_fill(case.fill, np.dtype(f"f{dtype.itemsize // 2}"))
            return np.array([part, part]).view(dtype)[0:1].reshape(())
        case "M" | "m":
            numbers = _whole_fills(np.dtype("i8"))
            # Without a number Zarr fills with "no value".
            number = numbers["no value" if case.fill == "null" else case.fill]
            return np.array(number, "i8").view(dtype)
        case "b":
            return np.array(case.fill == "largest")
        case _:
            return np.array(_whole_fills(dtype)[case.fill], dtype)


def _whole_fills(dtype: np.dtype) -> dict[str, int]:
    info = np.iinfo(dtype)
    return {"zero": 0, "null": 0, "-9": -9, "largest": info.max, "no value": info.min}


def _float_fill(fill: str, dtype: np.dtype) -> np.ndarray:
    if fill == "payload":
        return np.array(_PAYLOAD[dtype.itemsize], f"u{dtype.itemsize}").view(dtype)
    numbers = {
        "zero": 0.0,
        "null": 0.0,
        "-9": -9.0,
        "largest": np.finfo(dtype).max,
        "no value": np.nan,
        "infinity": -np.inf,
        "-0.0": -0.0,
    }
    return np.array(numbers[fill], dtype)


def payload_json(dtype: np.dtype) -> object:
    """The fill value "payload" as format 3 writes it."""
    if dtype.kind == "c":
        return [payload_json(np.dtype(f"f{dtype.itemsize // 2}"))] * 2
    return f"0x{_PAYLOAD[dtype.itemsize]:0{2 * dtype.itemsize}x}"
