"""How many bytes a pool may charge: a number, a share of free memory, or what passes ask for."""

from __future__ import annotations

import os
import re
from pathlib import Path

from torchdata_insitu.errors import BudgetError

__all__ = ["free_memory_bytes", "resolve_budget", "text_of_bytes"]

_CGROUP = Path("/sys/fs/cgroup")


def free_memory_bytes() -> int:
    """Memory this process could still take: the machine's, within its control group's limit."""
    available = _available_on_machine()
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return available
    if limit == "max":
        return available
    return max(0, min(available, int(limit) - used))


def _available_on_machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def resolve_budget(budget_bytes: int | str) -> tuple[int | None, int]:
    """Turn a ``budget_bytes`` argument into a fixed budget and a limit.

    Args:
        budget_bytes: bytes, a share of the memory free now such as ``"50%"``, or ``"auto"``.

    Returns:
        The fixed budget, or None for ``"auto"`` which grows with what is registered, and the most
        it may become, both in bytes.

    Raises:
        BudgetError: the value is none of these.
    """
    advice = "give bytes, a share such as '50%', or 'auto'"
    if isinstance(budget_bytes, bool) or not isinstance(budget_bytes, int | str):
        message = (
            f"budget_bytes is {budget_bytes!r} of type {type(budget_bytes).__name__}: {advice}"
        )
        raise BudgetError(message)
    if isinstance(budget_bytes, int):
        if budget_bytes <= 0:
            message = f"budget_bytes is {budget_bytes}, but must be above 0: {advice}"
            raise BudgetError(message)
        return budget_bytes, budget_bytes
    if budget_bytes == "auto":
        return None, free_memory_bytes() // 2
    share = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", budget_bytes)
    if share is None or not 0 < float(share[1]) <= 100:  # noqa: PLR2004 - percent
        message = f"budget_bytes is {budget_bytes!r}: {advice}"
        raise BudgetError(message)
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
