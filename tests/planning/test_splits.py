import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.arrays import make_array
from torchdata_insitu.errors import GeometryError, PlanError
from torchdata_insitu.planning.splits import split_by_chunk, split_by_range

T2M = make_array("t2m", 1000, 24)
THREE = {"train": 0.8, "val": 0.1, "test": 0.1}


def ranges_of(splits):
    return {name: split.ranges for name, split in splits.items()}


def test_splits_are_cut_on_chunk_edges_in_the_order_of_the_names():
    splits = split_by_chunk({"x": T2M}, THREE)
    assert ranges_of(splits) == {
        "train": ((0, 792),),
        "val": ((792, 888),),
        "test": ((888, 1000),),
    }
    assert (splits.axis, splits.n_samples, splits.edges, splits.gap) == (
        "time",
        1000,
        T2M.sample_chunks,
        0,
    )
    assert {split.half_used for split in splits.values()} == {0}


def test_arrays_chunked_differently_are_cut_on_common_edges():
    views = {"x": T2M, "y": make_array("u10", 1000, 36)}
    for split in split_by_chunk(views, THREE).values():
        assert all(edge % 72 == 0 or edge == 1000 for pair in split.ranges for edge in pair)


def test_what_fractions_leave_over_is_in_no_split():
    splits = split_by_chunk({"x": T2M}, {"train": 0.5, "val": 0.25})
    assert ranges_of(splits) == {"train": ((0, 504),), "val": ((504, 744),)}


def test_every_split_gets_a_cell():
    splits = split_by_chunk({"x": make_array("a", 40, 10)}, {"a": 0.97, "b": 0.01, "c": 0.02})
    assert ranges_of(splits) == {"a": ((0, 20),), "b": ((20, 30),), "c": ((30, 40),)}


def test_a_sample_range_is_exact_and_its_cut_chunks_are_counted():
    splits = split_by_chunk({"x": T2M}, {"train": 0.5, "val": 0.5}, sample_range=(100, 900))
    assert ranges_of(splits) == {"train": ((100, 504),), "val": ((504, 900),)}
    assert [split.half_used for split in splits.values()] == [1, 1]


def test_the_gap_is_the_span_of_the_windows():
    views = {"x": T2M.window(-6, 0), "y": T2M.shift(4)}
    splits = split_by_chunk(views, {"train": 0.8, "val": 0.2})
    assert ranges_of(splits) == {"train": ((0, 792),), "val": ((802, 1000),)}
    assert (splits.gap, splits["val"].half_used, splits["val"].crossing) == (10, 1, 0)


@pytest.mark.parametrize("gap", [0, 3, 9])
def test_windows_that_cross_are_counted_and_warned_about_once(gap):
    views = {"x": T2M.window(-6, 0), "y": T2M.shift(4)}
    with pytest.warns(
        UserWarning, match=rf"windows of {2 * (10 - gap)} anchors.*gap is {gap}"
    ) as record:
        splits = split_by_range(views, {"train": (0, 500), "val": (500, 1000)}, gap=gap)
    assert len(record) == 1
    assert record[0].filename == __file__
    assert [split.crossing for split in splits.values()] == [10 - gap, 10 - gap]


@given(
    st.integers(1, 30),
    st.lists(st.integers(-5, 5), min_size=1, max_size=3, unique=True),
    st.integers(0, 12),
    st.booleans(),
    st.integers(0, 5),
)
def test_crossing_anchors_are_those_whose_windows_share_a_sample(
    chunks, offsets, gap, contiguous, seed
):
    views = {"x": make_array("a", 150, chunks).window(*offsets)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            splits = split_by_chunk(
                views,
                {"train": 0.5, "val": 0.3},
                contiguous=contiguous,
                gap=gap,
                seed=seed,
            )
        except PlanError:
            return
    low, high = min(offsets), max(offsets)
    anchors = {
        name: [
            anchor
            for start, stop in split.ranges
            for anchor in range(start, stop)
            if anchor + min(low, 0) >= 0 and anchor + max(high, 0) < 150
        ]
        for name, split in splits.items()
    }
    seen = {
        name: {sample for anchor in own for sample in range(anchor + low, anchor + high + 1)}
        for name, own in anchors.items()
    }
    for name, other in (("train", "val"), ("val", "train")):
        crossing = [
            anchor
            for anchor in anchors[name]
            if seen[other] & set(range(anchor + low, anchor + high + 1))
        ]
        assert splits[name].crossing == len(crossing)


def test_dealt_cells_are_whole_and_follow_the_seed():
    first = split_by_chunk({"x": T2M}, THREE, contiguous=False, seed=1)
    again = split_by_chunk({"x": T2M}, THREE, contiguous=False, seed=1)
    other = split_by_chunk({"x": T2M}, THREE, contiguous=False, seed=2)
    assert first == again != other
    assert [len(split.ranges) > 1 for split in first.values()] == [True, True, True]
    assert sum(split.size for split in first.values()) == 1000
    for split in first.values():
        assert all(edge % 24 == 0 or edge == 1000 for pair in split.ranges for edge in pair)
        assert split.half_used == 0


def test_dealt_cells_never_change():
    splits = split_by_chunk(
        {"x": make_array("a", 100, 10)}, {"train": 0.6, "val": 0.4}, contiguous=False, seed=7
    )
    assert ranges_of(splits) == {
        "train": ((10, 40), (50, 70), (90, 100)),
        "val": ((0, 10), (40, 50), (70, 90)),
    }


def test_dealt_cells_keep_the_gap():
    splits = split_by_chunk({"x": T2M.window(0, 5)}, THREE, contiguous=False)
    owned = sorted((*pair, name) for name, split in splits.items() for pair in split.ranges)
    for (_, stop, name), (start, _, other) in pairwise(owned):
        assert name == other or start - stop >= 5
    assert sum(split.crossing for split in splits.values()) == 0


def test_a_gap_as_long_as_a_cell_is_refused_for_dealt_cells():
    with pytest.raises(PlanError, match=r"gap of 24 samples.*cells of 24"):
        split_by_chunk({"x": T2M.window(0, 24)}, THREE, contiguous=False)


def test_ranges_are_exact():
    splits = split_by_range({"x": T2M}, {"val": (900, 1000), "train": [(0, 300), (500, 900)]})
    assert ranges_of(splits) == {"val": ((900, 1000),), "train": ((0, 300), (500, 900))}
    assert list(splits) == ["val", "train"]
    assert splits.edges is None
    assert [split.half_used for split in splits.values()] == [1, 3]


def test_ranges_far_apart_keep_their_start():
    views = {"x": T2M.window(0, 10)}
    splits = split_by_range(views, {"train": (0, 500), "val": (509, 600), "test": (610, 900)})
    assert [splits[name].ranges[0][0] for name in splits] == [0, 510, 610]


@pytest.mark.parametrize(
    "ranges, named",
    [
        ({"train": (0, 900), "val": (800, 1000)}, r"\(0, 900\).*'train'.*\(800, 1000\).*'val'"),
        ({"train": (0, 1001)}, r"\(0, 1001\).*1000 samples"),
        ({"train": (5, 5)}, r"\(5, 5\)"),
        ({"train": []}, "no range"),
        ({"train": [(0, 50), (40, 60)]}, r"\(40, 60\).*end 50"),
        ({"train": "2001"}, r"range '2001' of 'train'"),
        ({"train": 5}, "range 5 of 'train'"),
        ({"train": (0, 1, 2)}, r"\(0, 1, 2\)"),
        ({"train": (0.0, 5.0)}, r"\(0.0, 5.0\)"),
        ({1: (0, 5)}, "name of a split is a text, not 1"),
        ({}, "not {}"),
        ([("train", (0, 5))], "mapping"),
    ],
)
def test_ranges_that_are_no_ranges_are_refused(ranges, named):
    with pytest.raises(PlanError, match=named):
        split_by_range({"x": T2M}, ranges)


def test_a_range_that_the_gap_eats_is_refused_with_both():
    with pytest.raises(PlanError, match=r"gap of 20 .*'train', which ends at 900.*\(900, 915\)"):
        split_by_range({"x": T2M.window(0, 20)}, {"train": (0, 900), "val": (900, 915)})


@pytest.mark.parametrize(
    "fractions, named",
    [
        ({}, "not {}"),
        ({"train": 0.8, "val": 0.3}, "train: 0.8, val: 0.3 add up to 1.1"),
        ({"train": 0.0}, "'train' is 0.0"),
        ({"train": 1.2}, "'train' is 1.2"),
        ({"train": float("nan")}, "'train' is nan"),
        ({"train": True}, "'train' is True"),
        ({"train": "0.8"}, "'train' is '0.8'"),
        ({"": 0.5}, "text, not ''"),
        ([0.8, 0.2], "mapping"),
    ],
)
def test_fractions_that_are_no_shares_are_refused(fractions, named):
    with pytest.raises(PlanError, match=named):
        split_by_chunk({"x": T2M}, fractions)


def test_thirds_may_round_above_one():
    thirds = dict.fromkeys("abc", 1 / 3 + 1e-12)
    assert sum(split.size for split in split_by_chunk({"x": T2M}, thirds).values()) == 1000


@pytest.mark.parametrize(
    "settings, named",
    [
        ({"gap": -1}, 'gap, unless "auto", is -1'),
        ({"gap": "no"}, "gap, .* not 'no'"),
        ({"gap": True}, "gap, .* not True"),
        ({"sample_range": [(0, 40), (60, 90)]}, r"one \(start, stop\).*60, 90"),
        ({"contiguous": False, "gap": 0, "seed": 1.5}, "seed.*1.5"),
        ({"sample_range": (10, 10)}, r"\(10, 10\)"),
        ({"sample_range": (0, 2000)}, r"\(0, 2000\).*1000"),
        ({"sample_range": (0, 40)}, "2 cells.*3 ways"),
    ],
)
def test_other_settings_are_checked(settings, named):
    with pytest.raises(PlanError, match=named):
        split_by_chunk({"x": T2M}, THREE, **settings)


def test_integers_of_numpy_are_integers():
    settings = {"contiguous": False, "gap": np.int64(0), "seed": np.int64(3)}
    plain = split_by_chunk({"x": T2M}, THREE, contiguous=False, gap=0, seed=3)
    assert split_by_chunk({"x": T2M}, THREE, **settings) == plain


def test_views_are_checked():
    with pytest.raises(GeometryError):
        split_by_chunk({"x": T2M, "y": make_array("b", 900, 24)}, THREE)
