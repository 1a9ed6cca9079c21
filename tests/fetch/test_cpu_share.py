"""The share of the machine is what affinity, control groups and the launcher leave."""

import os

import pytest

from torchdata_insitu.fetch import cpu_share
from torchdata_insitu.fetch.cpu_share import _cgroup_quota, cores_per_rank, usable_cores


def groups(tmp_path, membership, files):
    """A process in a control group, whose files hold these limits."""
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "self").write_text(membership)
    return _cgroup_quota(tmp_path / "self", tmp_path / "cgroup")


@pytest.mark.parametrize(
    "files, cores",
    [
        ({"cpu.max": "200000 100000\n"}, 2.0),
        ({"cpu.max": "max 100000\n"}, None),
        ({"job/cpu.max": "150000 100000\n"}, 1.5),
        ({"job/cpu.max": "max 100000\n", "cpu.max": "300000 100000\n"}, 3.0),
        ({"job/task/cpu.max": "400000 100000\n", "job/cpu.max": "100000 100000\n"}, 1.0),
        ({"job/cpu.max": "garbage\n"}, None),
        ({}, None),
    ],
)
def test_smallest_quota_above_the_process_counts(tmp_path, files, cores):
    assert groups(tmp_path, "0::/job/task\n", files) == cores


@pytest.mark.parametrize("quota, cores", [("250000\n", 2.5), ("-1\n", None), ("garbage\n", None)])
def test_quota_of_version_1_counts(tmp_path, quota, cores):
    files = {"cpu/job/cpu.cfs_quota_us": quota, "cpu/job/cpu.cfs_period_us": "100000\n"}
    assert groups(tmp_path, "4:memory:/job\n1:cpu,cpuacct:/job\n", files) == cores


def test_without_control_groups_there_is_no_quota(tmp_path):
    assert _cgroup_quota(tmp_path / "none", tmp_path) is None


@pytest.mark.parametrize("quota, cores", [(None, 8), (3.9, 3), (0.5, 1), (100.0, 8)])
def test_usable_cores_lie_within_affinity_and_quota(monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(cpu_share, "_cgroup_quota", lambda *_: quota)
    assert usable_cores() == cores


@pytest.mark.parametrize(
    "ranks, cores", [(None, 8), ("1", 8), ("3", 2), ("16", 1), ("0", 8), ("many", 8), ("", 8)]
)
def test_ranks_of_a_machine_share_it(monkeypatch, ranks, cores):
    monkeypatch.setattr(cpu_share, "usable_cores", lambda: 8)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if ranks is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert cores_per_rank() == cores
