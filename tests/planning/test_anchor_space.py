import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planning.arrays import make_array
from torchdata_insitu.errors import GeometryError, PlanError
from torchdata_insitu.geometry.cf_packing import CFPacking
from torchdata_insitu.geometry.value_decoding import ValueDecoding
from torchdata_insitu.planning.anchor_space import AnchorSpace
from torchdata_insitu.planning.draw_space import DrawSpace
from torchdata_insitu.planning.split import Split

T2M = make_array("t2m", 100, 24, field_chunks=(2,))


@st.composite
def spaces(draw):
    length = draw(st.integers(12, 60))

    def chunks():
        edges = sorted(draw(st.lists(st.integers(1, length - 1), unique=True, max_size=8)))
        return draw(st.one_of(st.integers(1, 70), st.just([0, *edges, length])))

    def offsets():
        return draw(st.lists(st.integers(-5, 5), min_size=1, max_size=3, unique=True))

    first, second = (make_array(name, length, chunks()) for name in "ab")
    borders = sorted(draw(st.lists(st.integers(0, length), unique=True, max_size=6)))
    pairs = tuple(zip(borders[::2], borders[1::2], strict=False))
    split = Split("train", pairs, length) if pairs else None
    try:
        return AnchorSpace({"x": first.window(*offsets()), "y": second.window(*offsets())}, split)
    except PlanError:
        return AnchorSpace({"x": first, "y": second})


def anchors_of(space):
    return [
        space.draws(unit, 0, n)[:, 0].tolist()
        for unit, n in enumerate(space.unit_lengths().expand().tolist())
    ]


def chunks_read(space, anchors):
    return {
        (number, int(array.sample_chunks.chunk_of(np.array(anchor + offset))), 0)
        for number, (array, offsets) in enumerate(zip(space.arrays, space.offsets, strict=True))
        for anchor in anchors
        for offset in offsets
    }


@settings(max_examples=100)
@given(spaces())
def test_units_hold_each_valid_anchor_once(space):
    length = space.arrays[0].n_samples
    ranges = space.split.ranges if space.split else ((0, length),)
    inside = [anchor for start, stop in ranges for anchor in range(start, stop)]
    valid = [
        anchor
        for anchor in inside
        if all(0 <= anchor + offset < length for offsets in space.offsets for offset in offsets)
    ]
    units = anchors_of(space)
    assert [anchor for unit in units for anchor in unit] == valid
    assert space.n_dropped_edges == len(inside) - len(valid)
    assert all(units)


@settings(max_examples=100)
@given(spaces())
def test_chunks_are_those_of_the_anchors(space):
    anchors = anchors_of(space)
    owner, rows = space.unit_chunks(np.arange(space.n_units))
    assert (np.diff(owner) >= 0).all()
    for unit, own in enumerate(anchors):
        expected = chunks_read(space, own)
        assert set(map(tuple, rows[owner == unit].tolist())) == expected
        some = np.array(own[::2])[:, None]
        assert set(map(tuple, space.chunks_of_draws(some).tolist())) == chunks_read(space, own[::2])
    for first in range(0, space.n_units, 3):
        units = np.arange(first, min(first + 3, space.n_units))[::-1]
        chunks = list(map(tuple, space.chunks(units).tolist()))
        assert len(set(chunks)) == len(chunks)
        assert set(chunks) == chunks_read(space, [a for unit in units for a in anchors[unit]])


@settings(max_examples=100)
@given(spaces(), st.integers(1, 70))
def test_no_consecutive_units_read_more_than_the_bound(space, n_units):
    anchors = anchors_of(space)
    bounds = space.chunks_bound(n_units)
    for first in range(max(1, space.n_units - n_units + 1)):
        read = chunks_read(space, [a for unit in anchors[first : first + n_units] for a in unit])
        for array, bound in enumerate(bounds):
            assert sum(chunk[0] == array for chunk in read) <= bound


def test_the_bound_is_exact_without_gaps():
    space = AnchorSpace({"x": T2M.window(-1, 0)})
    assert [space.chunks_bound(n) for n in (1, 2, 3, 9)] == [(2,), (3,), (4,), (5,)]
    assert AnchorSpace({"x": T2M}).chunks_bound(2) == (2,)


def test_far_offsets_read_chunks_of_their_own():
    space = AnchorSpace({"x": make_array("a", 2400, 24).window(0, 1200)})
    assert (space.chunks_bound(1), space.chunks_bound(4)) == ((2,), (8,))
    assert space.chunks(np.array([3, 2])).tolist() == [[0, 3, 0], [0, 53, 0], [0, 2, 0], [0, 52, 0]]


def test_it_is_a_draw_space():
    space = AnchorSpace({"x": T2M})
    assert isinstance(space, DrawSpace)
    assert (space.kind, space.n_columns, space.array_names) == ("anchor", 1, ("t2m",))
    assert (space.stored_per_chunk, space.has_offsets) == ((2,), False)
    assert AnchorSpace({"x": T2M.shift(1)}).has_offsets


def test_arrays_are_numbered_in_order_of_first_appearance():
    other = make_array("u10", 100, 24)
    space = AnchorSpace({"y": other, "x": T2M.window(-1, 0), "z": T2M.shift(3)})
    assert space.arrays == (other, T2M)
    assert space.offsets == ((0,), (-1, 0, 3))


def test_equal_names_from_two_stores_are_told_apart():
    arrays = [make_array("t2m", 100, 24, store=store) for store in ("era5", "rain")]
    assert AnchorSpace({"x": arrays[0], "y": arrays[1]}).array_names == ("era5:t2m", "rain:t2m")


def test_a_split_of_another_length_is_refused_with_both():
    with pytest.raises(PlanError, match=r"'train' is for an axis of 90 samples.*'t2m' has 100"):
        AnchorSpace({"x": T2M}, Split("train", ((0, 90),), 90))


def test_a_split_without_valid_anchors_is_refused():
    with pytest.raises(PlanError, match=r"'val' has no valid anchor.*0 to \+10"):
        AnchorSpace({"x": T2M.shift(10)}, Split("val", ((92, 100),), 100))


def test_views_that_cannot_be_drawn_together_are_refused():
    with pytest.raises(GeometryError):
        AnchorSpace({"x": T2M, "y": make_array("b", 99, 24)})


def test_an_array_read_in_two_ways_has_two_names():
    twice = (
        make_array("t2m", 100, 24),
        dataclasses.replace(
            make_array("t2m", 100, 24), decoding=ValueDecoding(np.dtype("f4"), np.dtype("f8"))
        ),
    )
    assert AnchorSpace({"x": twice[0], "mask": twice[1]}).array_names == ("t2m#0", "t2m#1")


def test_digests_tell_axes_and_packings_apart():
    square = make_array("t2m", 100, 24, field=(100,), field_chunks=(24,))
    turned = dataclasses.replace(square, sample_axis=1)
    packing = CFPacking((np.float32(-1),), None, None, square.dtype, square.dtype)
    of_other_sign = dataclasses.replace(packing, is_other_sign=True)
    packed = [
        dataclasses.replace(square, decoding=ValueDecoding(square.dtype, square.dtype, cf=cf))
        for cf in (packing, of_other_sign)
    ]
    digests = {AnchorSpace({"x": array}).digest()["arrays"] for array in (square, turned, *packed)}
    assert len(digests) == 4


def test_digests_never_change():
    assert AnchorSpace({"x": T2M.window(-1, 0)}).digest() == {
        "units": "c658736008778535",
        "arrays": "0fc07c1ced964fd1",
        "offsets": "eee19cf3bac9f7da",
    }


@pytest.mark.parametrize(
    "views, split, changed",
    [
        ({"x": T2M.window(-2, 0)}, None, {"offsets", "units"}),
        ({"y": T2M.window(-1, 0)}, None, {"offsets"}),
        ({"x": make_array("u10", 100, 24).window(-1, 0)}, None, {"arrays"}),
        ({"x": make_array("t2m", 100, 24, field=(4, 1), field_chunks=(4, 1)).window(-1, 0)},
         None, {"arrays"}),
        ({"x": make_array("t2m", 100, 20).window(-1, 0)}, None, {"units"}),
        ({"x": T2M.window(-1, 0)}, Split("train", ((0, 50),), 100), {"units"}),
    ],
    ids=["offset", "view", "array", "field", "chunks", "split"],
)  # fmt: skip
def test_digests_name_what_changed(views, split, changed):
    before, after = (
        AnchorSpace({"x": T2M.window(-1, 0)}).digest(),
        AnchorSpace(views, split).digest(),
    )
    assert {field for field in before if before[field] != after[field]} == changed


def test_equal_lengths_elsewhere_are_other_units():
    early, late = (
        AnchorSpace({"x": T2M}, Split("train", (pair,), 100)) for pair in ((0, 48), (48, 96))
    )
    assert early.unit_lengths().digest() == late.unit_lengths().digest()
    assert early.digest()["units"] != late.digest()["units"]


def test_growth_outside_the_split_changes_nothing():
    grown = make_array("t2m", 1000, 24, field_chunks=(2,))
    before = AnchorSpace({"x": T2M}, Split("train", ((0, 72),), 100))
    after = AnchorSpace({"x": grown}, Split("train", ((0, 72),), 1000))
    assert before.digest() == after.digest()
