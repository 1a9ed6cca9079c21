"""Processes of their own for tests, none of which outlives its test."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys

import psutil
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
# What a process takes for a sign that it is one of several.
_OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def run_python(*arguments, timeout_s, folder=ROOT):
    """Run `python ARGUMENTS`; at the timeout it is killed with all that it started.

    Args:
        arguments: what to run, and with what.
        timeout_s: less than pytest gives a test, after which nobody would kill anything.
        folder: where to run it.

    Returns:
        The exit status, and what was written to either stream.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _OF_RANKS}
    # One thread each: several processes share the cores of the tests.
    kept |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env=kept,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _kill_tree(process.pid)
        said, _ = process.communicate()
        pytest.fail(f"{arguments} was not done after {timeout_s} s:\n{said}")
    except BaseException:
        _kill_tree(process.pid)
        process.communicate()
        raise
    return process.returncode, said


def _kill_tree(pid):
    """Kill a process and its children; those of torchrun have sessions of their own."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        # Stopped first, so that it starts no further ones.
        root.suspend()
        for process in [*root.children(recursive=True), root]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    # A child that has lost its parent is only found by its group.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def run_torchrun(*arguments, n_ranks, timeout_s, options=(), folder=ROOT):
    """Run `torchrun ARGUMENTS` with so many processes on this machine, as `run_python` does."""
    return run_python(
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", n_ranks, *options),
        *arguments,
        timeout_s=timeout_s,
        folder=folder,
    )
