"""Jobs as a cluster runs them: started, told to end by SIGTERM, and killed if they do not."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from .ledger import Step, read_steps

_GRACE_S = 10.0
_TIMEOUT_S = 300.0
_POLL_S = 0.1


def run_job(
    ledger: Path, checkpoints: Path, *, processes: int, end_after: int | None = None
) -> list[Step]:
    """Run one job, and say which steps it made.

    Args:
        ledger: folder for the ledger of this job.
        checkpoints: where it goes on from and saves to.
        processes: how many to train on.
        end_after: number of the step after which SIGTERM is sent to all its processes; None to let
            it come to its end.

    Raises:
        RuntimeError: it failed by itself, or took longer than five minutes.
    """
    command = [sys.executable, "-m", "examples.lightning_ddp.training"]
    command += ["--processes", str(processes), "--ledger", str(ledger)]
    command += ["--checkpoints", str(checkpoints)]
    log = ledger.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w") as output,
        # A group of its own: Lightning starts the further processes, and all get the signal.
        subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True) as job,
    ):
        try:
            was_ended = _wait(job, ledger, end_after)
        finally:
            _end(job)
    if job.returncode != 0 and not was_ended:
        raise RuntimeError(
            f"the job ended with status {job.returncode}:\n{log.read_text()[-2000:]}"
        )
    return read_steps(ledger)


def _wait(job: subprocess.Popen[bytes], ledger: Path, end_after: int | None) -> bool:
    """Wait for the end of a job, or until it has done enough; says whether it was told to end."""
    deadline = time.monotonic() + _TIMEOUT_S
    while job.poll() is None:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the job did not end within {_TIMEOUT_S:.0f} s")
        steps = read_steps(ledger) if end_after is not None else []
        if steps and end_after is not None and steps[-1].number >= end_after:
            return True
        time.sleep(_POLL_S)
    return False


def _end(job: subprocess.Popen[bytes]) -> None:
    """SIGTERM for every process of a job, and SIGKILL for those that are there after a while."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(job.pid, signal_number)
        except ProcessLookupError:
            return
        try:
            job.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            continue
