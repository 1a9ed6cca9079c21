"""Train, end, resume on two processes and on one, and compare with a training that ran through."""

import argparse
import sys
import tempfile
from pathlib import Path

from .jobs import run_job
from .ledger import Step, samples_by_epoch, what_counts


def main() -> int:
    """Run the jobs and print the ledger; 1 if a sample came twice, never, or in another step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="for ledgers, logs and checkpoints")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        return _run(arguments.folder or Path(temporary))


def _run(folder: Path) -> int:
    print("a training on 2 processes, without an interruption", flush=True)
    unbroken = run_job(folder / "unbroken", folder / "unbroken-checkpoints", processes=2)
    per_epoch = sum(step.epoch == 0 for step in unbroken)
    print(f"  {len(unbroken)} steps, {per_epoch} in an epoch")
    jobs: list[list[Step]] = []
    plan = [(2, per_epoch // 2 + 1), (2, 2 * per_epoch - 3), (1, None)]
    for number, (processes, end_after) in enumerate(plan):
        until = "to its end" if end_after is None else f"until SIGTERM after step {end_after}"
        print(
            f"job {number} on {processes} process{'es'[: 2 * processes - 2]}, {until}", flush=True
        )
        jobs.append(
            run_job(
                folder / f"job-{number}",
                folder / "checkpoints",
                processes=processes,
                end_after=end_after,
            )
        )
        print(f"  steps {jobs[-1][0].number} to {jobs[-1][-1].number}")
    counted = what_counts(jobs)
    _print_ledger(counted)
    return _compare([step for _, step in counted], unbroken)


def _print_ledger(counted: list[tuple[int, Step]]) -> None:
    print("\nthe ledger of the model: samples of each step, over all processes")
    print("epoch step job processes  samples")
    for job, step in counted:
        samples = " ".join(f"{sample:2d}" for sample in step.samples)
        print(f"{step.epoch:5d} {step.number:4d} {job:3d} {step.n_processes:9d}  {samples}")


def _compare(steps: list[Step], unbroken: list[Step]) -> int:
    print()
    faults = 0
    for epoch, samples in samples_by_epoch(unbroken).items():
        found = samples_by_epoch(steps).get(epoch, [])
        twice, never = len(found) - len(set(found)), len(set(samples) - set(found))
        faults += twice + never
        print(f"epoch {epoch}: {len(set(found))} samples, {twice} twice, {never} never")
    differing = sum(a.samples != b.samples for a, b in zip(steps, unbroken, strict=False))
    differing += abs(len(steps) - len(unbroken))
    print(f"steps with other samples than in the training without interruption: {differing}")
    far = max(abs(a.loss - b.loss) / b.loss for a, b in zip(steps, unbroken, strict=False))
    print(f"largest difference of a loss: {100 * far:.4f} %")
    return int(faults + differing > 0)


if __name__ == "__main__":
    sys.exit(main())
