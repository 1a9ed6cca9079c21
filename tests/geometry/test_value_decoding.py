"""Values of a slot are those of numpy's own casts, and never silently others."""

import math
import pickle
import warnings

import numpy as np
import pytest

from tests.each_case import each_case
from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry.value_decoding import CastError, ValueDecoding
from torchdata_insitu.geometry.value_pieces import PIECE_ITEMS

NUMBERS = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
CASTS = [
    (source, target)
    for source in NUMBERS
    for target in NUMBERS
    if source != target and np.can_cast(source, target, "same_kind")
]
NO_CASTS = [
    (source, target)
    for source in NUMBERS
    for target in NUMBERS
    if not np.can_cast(source, target, "same_kind")
]
OBS = np.dtype([("u", ">f4"), ("flag", "u1"), ("t", "<M8[10s]"), ("name", "U3"), ("big", ">i8")])
PACKING = {"_FillValue": -9, "scale_factor": 0.5, "add_offset": 100.0}


def choose(stored, **options):
    return ValueDecoding.choose("a", np.dtype(stored), **options)


def decoded(stored, decoding=None, **options):
    """Stored values as a slot holds them."""
    dtype = options.pop("dtype", None)
    options["dtype"] = None if dtype is None else np.dtype(dtype)
    decoding = decoding or choose(stored.dtype, **options)
    out = np.empty(stored.shape, decoding.dtype)
    out.reshape(-1).view(np.uint8)[...] = 0xA5
    decoding.decode(stored, out)
    return out


def limits(dtype):
    info = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else np.finfo(dtype)
    return info.min, info.max


@each_case("order", "<>")
@each_case("source, target", CASTS)
def test_every_cast_within_a_kind_gives_what_numpy_gives(source, target, order):
    values = np.array([0, 1, 2, 50, 100, 1, 0], source).astype(np.dtype(source).newbyteorder(order))
    np.testing.assert_array_equal(decoded(values, dtype=target), values.astype(target), strict=True)


@each_case("source, target", NO_CASTS)
def test_every_other_cast_is_refused_with_both_dtypes(source, target):
    with pytest.raises(GeometryError, match="'a' has values of dtype") as caught:
        choose(source, dtype=np.dtype(target))
    text = str(caught.value)
    assert f"dtype {np.dtype(source).name}," in text
    assert f"dtype {np.dtype(target).name} is asked for" in text
    assert "leave dtype out" in text


NARROWING = [pair for pair in CASTS if all(np.dtype(code).kind in "iu" for code in pair)]


@each_case("order", "<>")
@each_case("source, target", NARROWING)
def test_an_integer_fits_exactly_when_the_target_has_it(source, target, order):
    (low, high), (least, most) = limits(source), limits(target)
    for value in {least - 1, least, most, most + 1, low, high, 0}:
        if not low <= value <= high:
            continue
        values = np.zeros((3, 5), np.dtype(source).newbyteorder(order))
        values[2, 3] = value
        if least <= value <= most:
            assert decoded(values, dtype=target)[2, 3] == value
        else:
            with pytest.raises(CastError, match=rf"the value {value} does not fit .*{most}"):
                decoded(values, dtype=target)


@each_case("order", "<>")
@each_case("n", [1, 2, 9, 1000])
@each_case(
    "source, target, value",
    [
        ("f8", "f4", 1e39),
        ("f8", "f4", -1e39),
        ("f8", "f2", 65520.0),
        ("f4", "f2", -1e6),
        ("f8", "c8", 1e39),
        ("c16", "c8", 1 + 1e39j),
        ("i4", "f2", 70_000),
        ("u8", "f2", 2**63),
    ],
)
def test_a_float_that_overflows_is_an_error_that_names_it(source, target, value, n, order):
    values = np.ones(n, np.dtype(source).newbyteorder(order))
    values[-1] = value
    with pytest.raises(CastError) as caught:
        decoded(values, dtype=target)
    assert f"the value {values[-1]!s} does not fit {np.dtype(target).name}" in str(caught.value)


@pytest.mark.parametrize("source, target", [("f8", "f4"), ("f4", "f2"), ("c16", "c8")])
def test_what_is_infinite_or_no_number_or_the_largest_stays_it(source, target):
    most = np.finfo(target).max
    values = np.array(
        [np.inf, -np.inf, np.nan, most, -most, 1e-300 if source != "f4" else 0], source
    )
    np.testing.assert_array_equal(decoded(values, dtype=target), values.astype(target), strict=True)


def test_integers_beyond_the_digits_of_a_float_are_rounded_as_numpy_rounds():
    values = np.array([2**53 + 1, 2**63 - 1, -(2**63)], "i8")
    for target in ("f8", "f4"):
        np.testing.assert_array_equal(decoded(values, dtype=target), values.astype(target))


BITS = {"f2": ("u2", 0x7C00), "f4": ("u4", 0x7F80_0000), "f8": ("u8", 0x7FF0_0000_0000_0000)}


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("code", BITS)
def test_floats_are_kept_bit_for_bit(code, order):
    """Quiet and signalling NaN with payload and sign, -0.0, denormals."""
    bits_code, exponent = BITS[code]
    sign = 1 << (8 * np.dtype(code).itemsize - 1)
    patterns = [exponent | 1, exponent | 5, sign | exponent | 9, sign, 1, sign | 1, exponent, 0]
    patterns.append(exponent | 1 << np.finfo(code).nmant - 1 | 3)
    bits = np.array(patterns * 7, bits_code).reshape(-1, 3)
    stored = bits.astype(np.dtype(bits_code).newbyteorder(order)).view(code).view(order + code)
    for values, expected in ((stored, bits), (stored[::-1, 1:], bits[::-1, 1:])):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = decoded(values)
        np.testing.assert_array_equal(got.view(bits_code), expected)


@pytest.mark.parametrize("target", ["f8", "f2"])
def test_signalling_nans_are_cast_to_nans_without_a_warning(target):
    values = np.array([0x7F80_0001, 0x3F80_0000], "u4").view("f4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = decoded(values, dtype=target)
    np.testing.assert_array_equal(got, [np.nan, 1])


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(
    "kind, unit", [("M8", "ns"), ("m8", "10s"), ("M8", "D"), ("m8", "generic")]
)
def test_times_are_their_integers_with_a_unit(kind, unit, order):
    dtype = np.dtype(f"{order}{kind}" + ("" if unit == "generic" else f"[{unit}]"))
    numbers = np.array([[3, -7], [2**62, np.iinfo("i8").min]])
    stored = numbers.view(dtype.newbyteorder("=")).astype(dtype)
    decoding = choose(dtype)
    assert (decoding.unit, decoding.dtype) == (unit, np.dtype("i8"))
    assert decoding.in_place == (order == "<")
    np.testing.assert_array_equal(decoded(stored, decoding), numbers, strict=True)
    np.testing.assert_array_equal(decoded(stored[:, ::-1], decoding), numbers[:, ::-1])
    assert np.isnat(stored[1, 1])


def test_times_may_be_asked_for_as_int64_and_as_nothing_else():
    assert choose("M8[ns]", dtype=np.dtype("i8")) == choose("M8[ns]")
    for target in NUMBERS:
        if target != "i8":
            with pytest.raises(GeometryError, match=r"datetime64\[ns\].*batch transform"):
                choose("M8[ns]", dtype=np.dtype(target))


def observations():
    values = np.zeros((4, 3), OBS)
    values["u"] = np.arange(12).reshape(4, 3) / 4
    values["flag"] = 7
    values["t"] = np.arange(12).reshape(4, 3).astype("M8[10s]")
    values["big"] = 3 * np.arange(12).reshape(4, 3)
    return values


def test_a_field_is_an_array_of_its_own():
    values = observations()
    for field, dtype in (("u", "f4"), ("flag", "u1"), ("t", "i8"), ("big", "i8")):
        got = decoded(values, field=field)
        assert got.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(got, values[field].astype(dtype))
    assert choose(OBS, field="t").unit == "10s"
    assert choose(OBS, field="u").unit is None
    assert not choose(OBS, field="flag").in_place
    np.testing.assert_array_equal(
        decoded(values, field="big", dtype="i2"), values["big"].astype("i2"), strict=True
    )


@pytest.mark.parametrize(
    "field, fact",
    [
        (None, r"structured values, of fields 'u' \(>f4\), 'flag' \(uint8\).*field='u'\)"),
        ("v", r"no field 'v' but 'u' \(>f4\)"),
        ("name", r"field 'name' of array 'a' is str96, which cannot become a tensor"),
    ],
)
def test_a_field_that_is_none_or_no_number_is_refused_with_those_there_are(field, fact):
    with pytest.raises(GeometryError, match=fact):
        choose(OBS, field=field)


def test_structured_values_without_a_number_are_refused():
    dtype = [("name", "U3"), ("inner", [("u", "f4")])]
    with pytest.raises(GeometryError, match="none of them is a number"):
        choose(dtype)
    with pytest.raises(GeometryError, match="'inner' of array 'a' is a structure of 1 fields"):
        choose(dtype, field="inner")


def test_of_many_fields_the_first_are_listed():
    with pytest.raises(GeometryError, match=r"'f19' .* and 980 more"):
        choose([(f"f{n}", "f4") for n in range(1000)])


@pytest.mark.parametrize("key", ["_FillValue", "missing_value", "scale_factor", "add_offset"])
@pytest.mark.parametrize("stored, field", [("M8[ns]", None), (OBS, "u")])
def test_packing_of_times_and_fields_is_refused_and_not_skipped(stored, field, key):
    with pytest.raises(GeometryError, match=rf"{key}=3.*decode_cf=False"):
        choose(stored, field=field, attributes={key: 3})
    assert choose(stored, field=field, attributes={"units": "days"}).cf is None
    assert choose(stored, field=field).cf is None


@each_case("order", "<>")
@each_case("target", [None, "f8", "f4", "f2", "c8", "c16"])
def test_a_cast_comes_after_the_packing(target, order):
    values = np.array([[-9, 0, 1], [30_000, -30_000, -9]], f"{order}i2")
    physical = np.where(values == -9, np.nan, values * 0.5 + 100.0)
    got = decoded(values, attributes=PACKING, dtype=target)
    np.testing.assert_array_equal(got, physical.astype(target or "f8"), strict=True)


def test_packed_values_that_overflow_in_the_cast_are_an_error():
    values = np.array([1, 2, 30_000], "i2")
    with pytest.raises(CastError, match=r"the value \S*e\+42 does not fit float32"):
        decoded(values, attributes={"scale_factor": 1e38}, dtype="f4")


def test_packed_values_are_no_integers_but_the_stored_ones_are():
    with pytest.raises(GeometryError, match="decode_cf=False gives the stored int16"):
        choose("i2", attributes=PACKING, dtype=np.dtype("i4"))
    assert choose("i2", dtype=np.dtype("i4")).dtype == np.dtype("i4")


def test_integers_that_mean_truth_values_are_cast_as_these():
    values = np.array([0, 1, 2], "i1")
    assert decoded(values, attributes={"dtype": "bool"}).tolist() == [False, True, True]
    assert decoded(values, attributes={"dtype": "bool"}, dtype="f4").tolist() == [0, 1, 1]


def test_masked_floats_that_are_cast_keep_the_mask():
    values = np.array([1, 1e36, 3], "f8")
    got = decoded(values, attributes={"_FillValue": 1e36, "missing_value": 1e36}, dtype="f2")
    np.testing.assert_array_equal(got, np.array([1, np.nan, 3], "f2"))


@pytest.mark.parametrize("shape", [(3, PIECE_ITEMS + 7), (PIECE_ITEMS + 7,), (2, 3, 70_001)])
@pytest.mark.parametrize("packed", [False, True])
def test_large_chunks_are_decoded_in_pieces_of_one_small_scratch(shape, packed):
    values = (np.arange(math.prod(shape)) % 251 - 9).astype("i4").reshape(shape)
    options = {
        "attributes": PACKING if packed else None,
        "dtype": np.dtype("f4" if packed else "i2"),
    }
    decoding = choose("i4", **options)
    asked = []

    def scratch(n_bytes):
        asked.append(n_bytes)
        return np.empty(n_bytes, np.uint8)

    out = np.empty(shape, decoding.dtype)
    decoding.decode(values, out, scratch)
    physical = np.where(values == -9, np.nan, values * 0.5 + 100.0) if packed else values
    np.testing.assert_array_equal(out, physical.astype(decoding.dtype))
    assert len(asked) > 1 if packed else not asked
    assert max(asked, default=0) <= 8 * PIECE_ITEMS


@pytest.mark.parametrize("dtype", ["f4", "i8", "M8[ns]", "c16"])
def test_what_needs_no_decoding_is_read_in_place(dtype):
    decoding = choose(dtype)
    assert decoding.in_place
    slot = np.arange(6).astype(decoding.dtype)
    decoding.finish(slot)
    np.testing.assert_array_equal(slot, np.arange(6))


def test_only_what_has_the_size_and_order_of_the_slot_is_read_in_place():
    masked = {"_FillValue": np.float32(-1), "missing_value": -1.0}
    assert choose("f4", attributes=masked).in_place
    assert not choose("f4", attributes=masked, dtype=np.dtype("f2")).in_place
    assert not choose(">f4").in_place
    assert not choose("f8", dtype=np.dtype("f4")).in_place
    assert not choose("i8", dtype=np.dtype("f8")).in_place
    assert not choose("i2", attributes=PACKING).in_place
    values = np.array([1, -1, 3], "f4")
    choose("f4", attributes=masked).finish(values)
    np.testing.assert_array_equal(values, [1, np.nan, 3])


def test_decodings_are_values():
    one = choose(OBS, field="u", dtype=np.dtype("f2"))
    assert pickle.loads(pickle.dumps(one)) == one
    others = [choose(OBS, field="u"), choose(OBS, field="flag"), choose("f4"), choose("M8[s]")]
    assert len({repr(decoding) for decoding in (one, *others)}) == 5
    assert len({one, *others}) == 5


@pytest.mark.parametrize(
    "decoding, text",
    [
        (choose("f4"), "float32"),
        (choose(">f4"), ">f4 -> float32"),
        (choose("i2", attributes=PACKING), "int16 -> float64"),
        (choose("M8[10s]"), "datetime64[10s] -> int64 in 10s"),
        (choose(OBS, field="u", dtype=np.dtype("f2")), "field 'u' >f4 -> float16"),
    ],
)
def test_text_says_what_becomes_what(decoding, text):
    assert str(decoding) == text
