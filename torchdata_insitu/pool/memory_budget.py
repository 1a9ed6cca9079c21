"""How many bytes a pool may charge: a number, a share of free memory, or what passes ask for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from torchdata_insitu.errors import BudgetError

__all__ = ["free_memory_bytes", "resolve_budget", "text_of_bytes"]

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


def resolve_budget(budget_bytes: int | str) -> tuple[int | None, int]:
    """Turn a `budget_bytes` argument into a fixed budget and a limit.

    Args:
        budget_bytes: bytes, a share of the memory free now such as `"50%"`, or `"auto"`.

    Returns:
        The fixed budget, or None for `"auto"` which grows with what is registered, and the most
        it may become, both in bytes.

    Raises:
        BudgetError: the value is none of these.
    """
    advice = "give bytes, a share such as '50%', or 'auto'"
    if isinstance(budget_bytes, bool) or not isinstance(budget_bytes, int | str):
        msg = f"budget_bytes is {budget_bytes!r} of type {type(budget_bytes).__name__}: {advice}"
        raise BudgetError(msg)
    if isinstance(budget_bytes, int):
        if budget_bytes <= 0:
            msg = f"budget_bytes is {budget_bytes}, but must be above 0: {advice}"
            raise BudgetError(msg)
        return budget_bytes, budget_bytes
    if budget_bytes == "auto":
        return None, free_memory_bytes() // 2
    share = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", budget_bytes)
    if share is None or not 0 < float(share[1]) <= 100:  # noqa: PLR2004 - percent
        msg = f"budget_bytes is {budget_bytes!r}: {advice}"
        raise BudgetError(msg)
    fixed = int(free_memory_bytes() * float(share[1]) / 100)
    return fixed, fixed


def text_of_bytes(n_bytes: int) -> str:
    """A byte count as people read it, in powers of 1,000."""
    size = float(n_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:  # noqa: PLR2004 - the step between units
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
