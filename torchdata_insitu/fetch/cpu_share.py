"""How many CPU cores this process may keep busy."""

import os
from pathlib import Path


def usable_cores() -> int:
    """Cores in the CPU affinity of the process, within the quota of its control group."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quota = _cgroup_quota(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return max(1, cores if quota is None else min(cores, int(quota)))


def cores_per_rank() -> int:
    """The share of `usable_cores` of one of the ranks that a launcher started on this machine.

    torchrun states their number in `LOCAL_WORLD_SIZE`; without it there is one.
    """
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    ranks = int(text) if text.isdecimal() else 1
    return max(1, usable_cores() // max(1, ranks))


def _cgroup_quota(membership: Path, mount: Path) -> float | None:
    """The smallest CPU quota on the way from the root to the group of the process, in cores.

    Source: Linux `cgroup-v2.rst` ("cpu.max") and `sched-bwc.rst` for version 1.
    """
    quotas = []
    for line in _lines(membership):
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = mount / "cpu" if controllers else mount
        folder = base / group.lstrip("/")
        for level in (folder, *folder.parents):
            if not level.is_relative_to(base):
                break
            quotas.append(_quota_v1(level) if controllers else _quota_v2(level))
    known = [quota for quota in quotas if quota is not None]
    return min(known) if known else None


def _quota_v2(folder: Path) -> float | None:
    words = " ".join(_lines(folder / "cpu.max")).split()
    return _cores(words[0], words[1]) if len(words) == 2 else None  # noqa: PLR2004


def _quota_v1(folder: Path) -> float | None:
    quota = "".join(_lines(folder / "cpu.cfs_quota_us"))
    return _cores(quota, "".join(_lines(folder / "cpu.cfs_period_us")))


def _cores(quota: str, period: str) -> float | None:
    # "max" and -1 both mean without limit.
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:
        return None
    return int(quota) / int(period)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().split("\n")
    except OSError:
        return []
