import json

import pytest

from torchdata_insitu.errors import PlanError
from torchdata_insitu.geometry.chunk_grid import AxisChunks
from torchdata_insitu.planning.split import Split, Splits

TRAIN = Split("train", ((0, 40), (50, 60)), 100, "time", crossing=3, half_used=1)
TEST = Split("test", ((60, 100),), 100, "time")


@pytest.mark.parametrize(
    "edges", [None, AxisChunks.regular(100, 24), AxisChunks.rectilinear([0, 40, 50, 60, 100])]
)
def test_splits_survive_a_file_exactly(tmp_path, edges):
    splits = Splits([TRAIN, TEST], gap=4, edges=edges)
    splits.save(tmp_path / "splits.json")
    loaded = Splits.load(str(tmp_path / "splits.json"))
    assert loaded == splits
    assert list(loaded.items()) == [("train", TRAIN), ("test", TEST)]
    assert (loaded.gap, loaded.edges, loaded.axis, loaded.n_samples) == (4, edges, "time", 100)
    assert hash(loaded) == hash(splits)
    assert loaded.to_json() == splits.to_json()


def test_the_text_is_versioned_json():
    state = json.loads(Splits([TRAIN]).to_json())
    assert (state["format"], state["version"]) == ("torchdata_insitu.splits", 1)
    assert state["splits"]["train"]["ranges"] == [[0, 40], [50, 60]]


def changed(**changes):
    return json.dumps({**json.loads(Splits([TRAIN]).to_json()), **changes})


@pytest.mark.parametrize(
    "text, named",
    [
        ("{", "JSON text"),
        ("[]", "format 'list'"),
        ("{}", "format None"),
        (changed(format="other"), "'other'"),
        (changed(version=2), "version 2, this library reads version 1"),
        (changed(splits={"train": {}}), "incomplete: KeyError 'ranges'"),
        (changed(splits={"train": {"ranges": [[0]]}}), "incomplete"),
        (changed(splits=[]), "incomplete"),
        (changed(n_samples=50), "not within the 50 samples"),
    ],
)
def test_text_of_something_else_is_refused(text, named):
    with pytest.raises(PlanError, match=named):
        Splits.from_json(text)


@pytest.mark.parametrize(
    "ranges, named",
    [
        ((), "no range"),
        (((5, 5),), r"\(5, 5\)"),
        (((0, 101),), r"\(0, 101\).* 100 samples"),
        (((-1, 4),), r"\(-1, 4\)"),
        (((0, 10), (9, 20)), r"\(9, 20\).*before the end 10"),
        (((0, 5.0),), r"\(0, 5.0\)"),
        (((0, 5, 9),), r"\(0, 5, 9\)"),
        ((5, 9), r"\(5, 9\)"),
        (((10, 20), (0, 5)), r"\(0, 5\).*before the end 20"),
    ],
)
def test_ranges_that_are_no_ranges_are_refused(ranges, named):
    with pytest.raises(PlanError, match=named):
        Split("train", ranges, 100)


@pytest.mark.parametrize(
    "others, named",
    [
        ([TRAIN], "distinct names"),
        ([Split("test", ((60, 90),), 90, "time")], "100 samples.*90"),
        ([Split("test", ((60, 90),), 100, "step")], "'time'.*'step'"),
        ([Split("test", ((30, 70),), 100, "time")], r"\(0, 40\).*'train'.*\(30, 70\).*'test'"),
    ],
)
def test_splits_that_do_not_go_together_are_refused(others, named):
    with pytest.raises(PlanError, match=named):
        Splits([TRAIN, *others])


def test_no_split_is_refused():
    with pytest.raises(PlanError, match="at least one"):
        Splits([])


def test_a_missing_split_is_named_with_those_there_are():
    with pytest.raises(KeyError, match=r"'val'.*\['train', 'test'\]"):
        Splits([TRAIN, TEST])["val"]


def test_a_split_knows_its_size():
    assert (TRAIN.size, TEST.size) == (50, 40)
    assert repr(Splits([TRAIN, TEST], gap=2)) == "Splits(train: 50, test: 40 of 100 samples, gap 2)"
