"""The same training in a process of its own, killed three times and resumed each time."""

import pathlib
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

N_KILLS = 3


@dataclass
class Interrupted:
    """What became of a training that was killed again and again."""

    losses: list[tuple[int, float]] = field(default_factory=list)
    """Step and loss of every step of every life, those done twice included."""
    killed_after: list[int] = field(default_factory=list)
    """The last step each killed process told of."""
    resumed_after: list[int] = field(default_factory=list)
    """The step of the checkpoint each next process went on from."""


def choose_kills(n_steps: int, first: int, seed: int | None = None) -> list[int]:
    """Choose three different steps at random.

    The last third is left out: a process that is done before its signal arrives was not killed.

    Args:
        n_steps: steps of the whole training.
        first: the first step that may be chosen; before the first checkpoint there is nothing to
            resume from.
        seed: repeats a choice.
    """
    steps = range(first, n_steps * 2 // 3)
    if len(steps) < N_KILLS:
        raise SystemExit(f"{n_steps} steps are too few to be killed three times: raise --epochs")
    return sorted(random.Random(seed).sample(steps, N_KILLS))  # noqa: S311, no secret


def train_and_kill(
    arguments: list[str], kills: list[int], on_step: Callable[[int, float], None]
) -> Interrupted:
    """Run a training to its end through one SIGKILL for each of ``kills``.

    The signal is sent as soon as the step has been told of; the process is then anywhere in a
    later step, or in the middle of writing a checkpoint.

    Args:
        arguments: the command line that trains, writes checkpoints and prints
            ``step NUMBER LOSS`` after each step, the loss in hexadecimal.
        kills: the steps after which to kill, ascending.
        on_step: called for every step with its number and loss.

    Raises:
        RuntimeError: the training failed by itself.
    """
    story = Interrupted()
    for kill in [*kills, None]:
        first = len(story.losses)
        with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True) as p:
            for step, loss in _steps(p):
                story.losses.append((step, loss))
                on_step(step, loss)
                if kill is not None and step >= kill:
                    p.send_signal(signal.SIGKILL)
        expected = 0 if kill is None else -signal.SIGKILL
        if p.returncode != expected:
            raise RuntimeError(f"the training ended with status {p.returncode}, not {expected}")
        if first:
            story.resumed_after.append(story.losses[first][0] - 1)
        if kill is not None:
            story.killed_after.append(story.losses[-1][0])
    return story


def _steps(process: subprocess.Popen[str]) -> Any:
    """The steps a process tells of, until it ends; a line cut by the kill is no step."""
    for line in process.stdout or ():
        words = line.split()
        if line.endswith("\n") and len(words) == 3 and words[0] == "step":  # noqa: PLR2004
            yield int(words[1]), float.fromhex(words[2])


def count_differences(
    story: Interrupted, losses: list[float], killed: pathlib.Path, unbroken: pathlib.Path
) -> tuple[int, int]:
    """Compare with the uninterrupted training, bit for bit.

    Args:
        story: the killed training.
        losses: every loss of the uninterrupted training.
        killed: final checkpoint of the killed training.
        unbroken: final checkpoint of the uninterrupted training.

    Returns:
        How many losses differ, and how many tensors of the final weights.
    """
    n_losses = sum(loss.hex() != losses[step - 1].hex() for step, loss in story.losses)
    n_losses += len(losses) - len({step for step, _ in story.losses})
    theirs = torch.load(killed, weights_only=True)["model"]
    ours = torch.load(unbroken, weights_only=True)["model"]
    n_weights = sum(_bits(theirs[name]) != _bits(ours[name]) for name in ours)
    return n_losses, n_weights + len(ours.keys() ^ theirs.keys())


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()
