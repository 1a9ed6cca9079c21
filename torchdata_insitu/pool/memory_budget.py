"""How many bytes a pool may charge: a number, a share of free memory, or what passes ask for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from torchdata_insitu.errors import BudgetError

__all__ = ["PoolBudget", "free_memory_bytes", "text_of_bytes"]

_MEMBERSHIP = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def free_memory_bytes() -> int:
    """Memory this process could still take: the machine's, within the limits of its control groups.

    Source: Linux `cgroup-v2.rst`, `memory.max`, `memory.current` and `memory.stat`. What files keep
    in memory without use is free: the system gives it up when it is asked for.
    """
    free = [_available_on_machine(), *_free_in_groups(_MEMBERSHIP, _MOUNT)]
    return max(0, min(free))


def _free_in_groups(membership: Path, mount: Path) -> Iterator[int]:
    """What each control group from that of the process up to the root leaves."""
    groups = [line[3:] for line in _lines(membership) if line.startswith("0::")]
    for group in groups or ["/"]:
        folder = mount / group.lstrip("/")
        for level in (folder, *folder.parents):
            if not level.is_relative_to(mount):
                break
            limit = "".join(_lines(level / "memory.max"))
            used = "".join(_lines(level / "memory.current"))
            if limit.isdecimal() and used.isdecimal():
                stat = dict(line.split(" ", 1) for line in _lines(level / "memory.stat"))
                yield int(limit) - int(used) + int(stat.get("inactive_file", 0))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _available_on_machine() -> int:
    for line in _lines(Path("/proc/meminfo")):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


class PoolBudget:
    """What a pool may charge: fixed, or growing with the passes that start.

    Attributes:
        asked: the argument it was made from.
        n_bytes: the budget; with `"auto"` what passes so far made of it.
        limit_bytes: the most it may become.
    """

    def __init__(self, budget_bytes: int | str) -> None:
        """Resolve the argument; shares are of the memory free now.

        Args:
            budget_bytes: bytes, a share of free memory such as `"50%"`, or `"auto"`.

        Raises:
            BudgetError: the value is none of these.
        """
        self.asked = budget_bytes
        fixed = _fixed_bytes(budget_bytes)
        self.n_bytes = fixed or 0
        self.limit_bytes = free_memory_bytes() // 2 if fixed is None else fixed
        self._is_auto = fixed is None

    def grown_for(self, floor_bytes: int) -> int:
        """The budget once passes with so many bytes of floors together are live."""
        if not self._is_auto:
            return self.n_bytes
        # Two blocks for each, so that the next one is read while one is drawn from.
        return max(self.n_bytes, min(2 * floor_bytes, self.limit_bytes))

    def text(self, n_bytes: int, *, is_exact: bool = False) -> str:
        """So many bytes of this budget for messages, with what made it that many."""
        size = f"{n_bytes} B" if is_exact else text_of_bytes(n_bytes)
        if not isinstance(self.asked, str):
            return size
        if self._is_auto and n_bytes < self.limit_bytes:
            return f"{size} ({self.asked!r}: two blocks of each pass)"
        share = "'auto': half" if self._is_auto else self.asked
        return f"{size} ({share} of the memory free when the pool was made)"


def _fixed_bytes(budget_bytes: int | str) -> int | None:
    advice = "give bytes, a share such as '50%', or 'auto'"
    if isinstance(budget_bytes, bool) or not isinstance(budget_bytes, int | str):
        msg = f"budget_bytes is {budget_bytes!r} of type {type(budget_bytes).__name__}: {advice}"
        raise BudgetError(msg)
    if isinstance(budget_bytes, int):
        if budget_bytes <= 0:
            msg = f"budget_bytes is {budget_bytes}, but must be above 0: {advice}"
            raise BudgetError(msg)
        return budget_bytes
    if budget_bytes == "auto":
        return None
    share = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", budget_bytes)
    if share is None or not 0 < float(share[1]) <= 100:  # noqa: PLR2004 - percent
        msg = f"budget_bytes is {budget_bytes!r}: {advice}"
        raise BudgetError(msg)
    return int(free_memory_bytes() * float(share[1]) / 100)


def text_of_bytes(n_bytes: int) -> str:
    """A byte count as people read it, in powers of 1,000."""
    size = float(n_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:  # noqa: PLR2004 - the step between units
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
