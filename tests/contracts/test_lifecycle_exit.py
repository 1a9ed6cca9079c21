"""Interpreters that exit, Ctrl-C, and forks, in the middle of an epoch."""

import json
import os
import subprocess
import sys

import pytest

from tests.contracts.stalled_loaders import FEW_ROOTS

QUICK = (
    ("left_in_the_middle", "memory", "gather"),
    ("left_in_the_middle", "local", "Prefetcher"),
    ("left_in_the_middle", "HTTP", "Prefetcher"),
    ("left_while_a_thread_waits", "Zarr's loop", "its Prefetcher"),
    ("interrupted_and_left", "HTTP", "gather"),
    ("interrupted_and_resumed", "Zarr's loop", "Prefetcher"),
    ("interrupted_and_resumed", "HTTP", "gather"),
    ("interrupted_and_resumed", "tries", "gather"),
    ("interrupted_and_resumed", "files", "Prefetcher"),
    ("interrupted", "HTTP", "Prefetcher"),
    ("refused_in_forked_workers", "HTTP", "Prefetcher"),
)
SLOW = tuple(
    case
    for case in (
        *(
            (program, kind, root)
            for kind in ("memory", "local", "Zarr's loop", "HTTP")
            for root in FEW_ROOTS
            for program in ("left_in_the_middle", "left_while_a_thread_waits")
        ),
        *(
            (program, kind, root)
            for kind in ("Zarr's loop", "HTTP", "tries")
            for root in (*FEW_ROOTS, "its Mapper", "its Prefetcher")
            for program in ("interrupted_and_left", "interrupted", "interrupted_and_resumed")
        ),
        *(
            ("refused_in_forked_workers", kind, root)
            for kind in ("memory", "local", "Zarr's loop")
            for root in FEW_ROOTS
        ),
        *(("interrupted_and_resumed", "files", root) for root in FEW_ROOTS),
        *(("interrupted_and_left", "files", root) for root in FEW_ROOTS[:2]),
        ("left_while_a_thread_waits", "files", "Prefetcher"),
    )
    if case not in QUICK
)


def outcomes_of(cases, folder):
    """Exit status, seconds and output of programs: one process forks for all of them."""
    command = [sys.executable, "-W", "error", "-m", "tests.contracts.exits"]
    # A thread of the linear algebra library would be one that the forks do not have.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, json.dumps(cases), str(folder)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env=environment,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return dict(zip(cases, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return outcomes_of(QUICK, tmp_path_factory.mktemp("exits"))


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    return outcomes_of(SLOW, tmp_path_factory.mktemp("exits"))


def outcomes(*programs):
    """A test of each of the cases with these programs."""
    cases = [
        *((case, "quick", ()) for case in QUICK),
        *((case, "slow", pytest.mark.slow) for case in SLOW),
    ]
    return pytest.mark.parametrize(
        "case, run",
        [
            pytest.param(case, run, marks=marks, id="-".join(case))
            for case, run, marks in cases
            if case[0] in programs
        ],
    )


@pytest.fixture
def outcome(case, run, request):
    return request.getfixturevalue(run)[case]


@outcomes("left_in_the_middle", "left_while_a_thread_waits", "interrupted_and_left")
def test_an_interpreter_exits_at_once_and_says_nothing(outcome):
    status, seconds, said = outcome
    assert (status, said) == (0, "")
    assert seconds < 5


@outcomes("interrupted_and_resumed")
def test_ctrl_c_comes_through_and_the_next_loop_goes_on(outcome):
    status, _, said = outcome
    assert status == 0, said
    assert float(said) < 1


@outcomes("refused_in_forked_workers")
def test_workers_that_are_forked_are_refused_and_the_parent_goes_on(outcome):
    status, _, said = outcome
    assert status == 0, said
    assert float(said) < 1


@outcomes("interrupted")
def test_ctrl_c_ends_a_program(outcome):
    status, seconds, said = outcome
    assert said.startswith("Traceback")
    assert said.endswith("\nKeyboardInterrupt\n")
    assert said.count("Traceback") == 1
    assert status in {130, -2}
    assert seconds < 5
