"""Numbered cases: first those that have every pair of levels, then any."""

import functools
import random
from dataclasses import dataclass
from typing import Any

from tests.contracts.generated.factors import SPACE
from tests.contracts.generated.pairwise import Row

SEED = 0
N_SHORT_RUN = 300
N_LONG_RUN = 5000


@dataclass(frozen=True)
class Case:
    """One level of each factor; what else a store is made of follows from the number."""

    number: int
    levels: Row

    def __getattr__(self, name: str) -> Any:
        try:
            return self.levels[name]
        except KeyError:
            raise AttributeError(name) from None

    def rng(self, what: str) -> random.Random:
        """Choices about one thing, which stay as they are when others are added."""
        return random.Random(f"{SEED}/{self.number}/{what}")

    def __str__(self) -> str:
        levels = ", ".join(f"{name}={level!r}" for name, level in self.levels.items())
        return f"case {self.number} ({levels})"

    @property
    def command(self) -> str:
        """What runs this case again and keeps its store."""
        return f"python -m tests.contracts.generated --case {self.number}"


@functools.cache
def covering_rows() -> list[Row]:
    """Levels of the first cases, in which every two levels meet that can."""
    return SPACE.covering_rows(SEED)


def case(number: int) -> Case:
    """The case of a number from 0."""
    rows = covering_rows()
    if number < len(rows):
        return Case(number, rows[number])
    return Case(number, SPACE.random_row(random.Random(f"{SEED}/{number}")))
