"""One iteration of a loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from torch import Tensor

if TYPE_CHECKING:
    from torchdata_insitu.loader import InSituLoader

__all__ = ["LoaderIterator"]


class LoaderIterator:
    """Keeps its loader alive, and ends when a newer iteration begins."""

    def __init__(self, loader: InSituLoader, generation: int) -> None:
        """Belong to one `iter()` of a loader."""
        self._loader = loader
        self._generation = generation

    def __iter__(self) -> Self:
        """Itself."""
        return self

    def __next__(self) -> dict[str, Tensor]:
        """The next batch."""
        return self._loader._next(self._generation)  # noqa: SLF001 - the two are one
