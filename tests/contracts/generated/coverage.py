"""Which levels and pairs of levels the cases of a run had."""

import functools
from collections import Counter
from typing import Any

from tests.contracts.generated.cases import Case, covering_rows
from tests.contracts.generated.factors import FACTORS
from tests.contracts.generated.pairwise import pairs_of


@functools.cache
def possible_pairs() -> frozenset[Any]:
    """Every two levels that can meet."""
    return frozenset(pair for row in covering_rows() for pair in pairs_of(row))


class Coverage:
    """Counts cases as they are run.

    Args:
        title: What was run.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.n_cases = 0
        self.n_failed = 0
        self.n_read_less = 0
        self._levels: Counter[Any] = Counter()
        self._pairs: set[Any] = set()

    def add(self, case: Case) -> None:
        self.n_cases += 1
        self._levels.update(case.levels.items())
        self._pairs |= pairs_of(case.levels)

    def lines(self) -> list[str]:
        """A table: each factor with its levels and how many cases had them."""
        possible = possible_pairs()
        n_pairs = len(possible & self._pairs)
        width = max(map(len, FACTORS))
        title = (
            f"{self.title}: {self.n_cases} cases, {self.n_failed} failed; {n_pairs} of "
            f"{len(possible)} pairs of levels ({n_pairs / len(possible):.1%}); "
            f"less read than planned, since it was resident, in {self.n_read_less}"
        )
        rows = [
            f"  {name:{width}}  "
            + ", ".join(f"{level} {self._levels[name, level]}" for level in levels)
            for name, levels in FACTORS.items()
        ]
        return [title, *rows]


RUN = Coverage("generated stores")
"""The cases that this process ran as tests."""
