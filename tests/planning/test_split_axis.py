from tests.planning.arrays import make_array
from torchdata_insitu.planning.split_axis import SplitAxis


def test_the_gap_is_the_span_from_the_first_to_the_last_sample_read():
    a, b = make_array("a", 100, 10), make_array("b", 100, 7)
    axis = SplitAxis({"x": a.window(-3, -1), "y": b.shift(4)}, "auto")
    assert (axis.span, axis.gap, axis.valid) == (7, 7, (3, 96))
    assert SplitAxis({"y": b.shift(4)}, "auto").gap == 0
    assert SplitAxis({"x": a.window(-3, -1)}, 1).gap == 1


def test_chunks_used_in_part_are_counted_for_every_array():
    axis = SplitAxis({"x": make_array("a", 100, 10), "y": make_array("b", 100, 25)}, 0)
    (split,) = axis.as_splits([("train", 0, 50), ("train", 55, 60)], ["train"])
    assert split.half_used == 2
    (split,) = axis.as_splits([("train", 0, 55), ("train", 55, 60)], ["train"])
    assert split.half_used == 1
