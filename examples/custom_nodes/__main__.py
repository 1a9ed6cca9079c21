"""Take two epochs in one piece, then again in two, and compare every bit."""

import json
import pathlib
import sys
import tempfile

import torch

import torchdata_insitu as tdi

from .archives import Archive, make_archives
from .chain import make_loader
from .running_scale import Batch, RunningScale

N_EPOCHS = 2


def main() -> None:
    """Run both, and say whether they are equal."""
    with tempfile.TemporaryDirectory() as folder:
        archives = make_archives(pathlib.Path(folder))
        with make_loader(archives) as loader:
            print(tdi.describe(loader))
            n_batches = len(loader)
            whole = take(loader)
            tell(loader)
        stop = n_batches // 3
        saved = pathlib.Path(folder) / "state.json"
        first = interrupted(archives, stop, saved)
        print(f"interrupted after batch {stop} of {n_batches}: {saved.stat().st_size} bytes saved")
        rest = resumed(archives, saved)
        print(f"resumed by a new loader: {len(rest)} more batches in {N_EPOCHS} epochs")
    n_different = count_differences([*first, *rest], whole)
    if n_different:
        sys.exit(f"{n_different} of {len(whole)} batches differ: this should never happen")
    print(f"both runs are equal: {len(whole)} batches, samples and values, bit for bit")


def take(loader: tdi.InSituLoader) -> list[Batch]:
    """All that is left, to the end of the last epoch."""
    return [batch for _ in range(loader.epoch, N_EPOCHS) for batch in loader]


def interrupted(archives: list[Archive], stop: int, saved: pathlib.Path) -> list[Batch]:
    """The first batches; then the state is saved and everything is dropped."""
    batches: list[Batch] = []
    with make_loader(archives) as loader:
        for batch in loader:
            batches.append(batch)
            if len(batches) == stop:
                saved.write_text(json.dumps(loader.state_dict()))
                break
    return batches


def resumed(archives: list[Archive], saved: pathlib.Path) -> list[Batch]:
    """All that follows a state, from nodes that are new."""
    with make_loader(archives) as loader:
        loader.load_state_dict(json.loads(saved.read_text()))
        return take(loader)


def count_differences(batches: list[Batch], expected: list[Batch]) -> int:
    """Batches that are missing, in excess, or unlike in any value."""
    n_equal = sum(
        ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
        for ours, theirs in zip(batches, expected, strict=False)
    )
    return max(len(batches), len(expected)) - n_equal


def tell(loader: tdi.InSituLoader) -> None:
    """Say what the node has learned."""
    scale = loader.node.source
    if isinstance(scale, RunningScale):
        for name, moments in scale.moments.items():
            print(f"{name:>10}: mean {moments.mean:.2f}, spread {moments.std:.2f}")


if __name__ == "__main__":
    main()
