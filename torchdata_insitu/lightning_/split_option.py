"""The splits of a data module, from what a YAML file can hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchdata_insitu.errors import PlanError
from torchdata_insitu.geometry.view import View
from torchdata_insitu.planning.split import Split, Splits
from torchdata_insitu.planning.split_axis import Gap
from torchdata_insitu.planning.splits import split_by_chunk, split_by_range

__all__ = ["STAGES", "SplitOption", "splits_of"]

STAGES = ("train", "val", "test", "predict")

type SplitOption = (
    dict[str, float] | dict[str, list[int]] | dict[str, list[list[int]]] | Splits | Path | str
)


def splits_of(
    option: SplitOption | None, views: Mapping[str, View], gap: Gap
) -> Mapping[str, Split | None]:
    """The split of each stage; None for one that has all samples.

    Args:
        option: fractions or ranges by stage, `Splits`, the path of a file of `Splits.save`, or None
            for all samples in `"train"`.
        views: what a batch holds.
        gap: samples left out between splits, see `split_by_chunk`.

    Raises:
        PlanError: a split that is of no stage, or none for training; anything else that
            `split_by_chunk`, `split_by_range` or `Splits.load` raise.
        OSError: the file cannot be read.
    """
    if option is None:
        return {"train": None}
    splits = _made(option, views, gap)
    unknown = [name for name in splits if name not in STAGES]
    if unknown:
        msg = f"split has {unknown}, but the stages of a data module are {list(STAGES)}"
        raise PlanError(msg)
    return dict(splits)


def _made(option: SplitOption, views: Mapping[str, View], gap: Gap) -> Splits:
    if isinstance(option, Splits):
        return option
    if isinstance(option, str | Path):
        return Splits.load(option)
    # Callers without a type checker may pass anything.
    given: Any = option
    values = list(given.values()) if isinstance(given, Mapping) else []
    are_ranges = [isinstance(value, Sequence) for value in values]
    if not values or any(are_ranges) != all(are_ranges):
        msg = (
            f"split is {option!r}: give fractions as in {{'train': 0.8, 'val': 0.2}}, ranges of "
            "samples as in {'train': [0, 800], 'val': [800, 1000]}, or the path of a splits.json"
        )
        raise PlanError(msg)
    if all(are_ranges):
        return split_by_range(views, given, gap=gap)
    return split_by_chunk(views, given, gap=gap)
