"""Train, score, kill, resume, compare, draw. ``--help`` lists what can be changed."""

import argparse
import pathlib
import sys
import tempfile
import time

from tqdm import tqdm

import torchdata_insitu as tdi

from .data import Data, Source
from .figure import draw_figure, typical_forecast
from .kill_and_resume import choose_kills, count_differences, train_and_kill
from .labels import Labels, read_labels
from .scores import Forecasts, make_forecasts
from .train import Recipe, Training

HERE = pathlib.Path(__file__).resolve().parent


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.storm_forecast",
        description="Train a small forecast model in place on a Zarr archive, kill the training "
        "three times, and show that resuming changes no bit.",
    )
    source = parser.add_argument_group("the archive")
    source.add_argument(
        "--url",
        default=str(HERE / "storm.zarr"),
        help="Zarr store: a path or URL (s3://, ...); the storm of January 1996 if not given",
    )
    source.add_argument(
        "--inputs", nargs="+", metavar="NAME", help="arrays to forecast from; all if not given"
    )
    source.add_argument(
        "--targets", nargs="+", metavar="NAME", help="inputs to forecast; all if not given"
    )
    source.add_argument(
        "--sample-axis", default="0", metavar="AXIS", help="number or name (%(default)s)"
    )
    source.add_argument(
        "--lead", type=int, default=1, metavar="STEPS", help="steps ahead (%(default)s)"
    )
    source.add_argument(
        "--held-back",
        type=float,
        default=0.22,
        metavar="SHARE",
        help="last share of the steps (%(default)s)",
    )
    training = parser.add_argument_group("the training")
    training.add_argument("--epochs", type=int, default=60, help="(%(default)s)")
    training.add_argument("--batch-size", type=int, default=8, help="(%(default)s)")
    training.add_argument(
        "--block-chunks", type=int, default=3, help="chunks shuffled among themselves (%(default)s)"
    )
    training.add_argument(
        "--budget",
        type=float,
        default=0.5,
        metavar="SHARE",
        help="memory for chunks, as a share of the decoded training steps (%(default)s)",
    )
    training.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    output = parser.add_argument_group("the output")
    output.add_argument(
        "--out", type=pathlib.Path, default=HERE / "out", help="folder (%(default)s)"
    )
    output.add_argument(
        "--draw", nargs="+", metavar="NAME", help="up to three targets; the first ones if not given"
    )
    output.add_argument("--kill-seed", type=int, help="repeats the choice of steps to kill at")
    output.add_argument(
        "--train-only",
        type=pathlib.Path,
        metavar="CHECKPOINT",
        help="only train, from this checkpoint if it is there, and print every step",
    )
    return parser.parse_args()


def main() -> None:
    """Run the job."""
    arguments = parse_arguments()
    source = Source(
        url=arguments.url,
        inputs=tuple(arguments.inputs) if arguments.inputs else None,
        targets=tuple(arguments.targets) if arguments.targets else None,
        sample_axis=arguments.sample_axis,
        lead=arguments.lead,
        held_back=arguments.held_back,
    )
    data = Data(
        source,
        batch_size=arguments.batch_size,
        block_chunks=arguments.block_chunks,
        budget=arguments.budget,
        seed=arguments.seed,
    )
    recipe = Recipe(epochs=arguments.epochs, seed=arguments.seed)
    if arguments.train_only:
        training = Training(data, recipe, arguments.train_only)
        training.run(lambda step, loss: print("step", step, loss.hex(), flush=True))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        unbroken = pathlib.Path(folder) / "unbroken.pt"
        training = train(data, recipe, unbroken)
        labels = read_labels(data.store, data.arrays)
        with data.ordered_loader("held back") as loader:
            forecasts = make_forecasts(training.model, loader)
        print_scores(forecasts, channel_names(data), labels)
        draw(arguments, data, forecasts, labels)
        compare_with_killed(training, unbroken, arguments.kill_seed)


def train(data: Data, recipe: Recipe, checkpoint: pathlib.Path) -> Training:
    """Train without interruption and tell what was read."""
    training = Training(data, recipe, checkpoint)
    print(tdi.describe(training.loader))
    start_s = time.perf_counter()
    with progress("training", training.n_steps) as bar:
        training.run(lambda step, loss: advance(bar, step, loss))
    train_s = time.perf_counter() - start_s
    n_reads = sum(training.loader.stats().reads.values())
    print(
        f"read {n_reads:,} stored chunks in {train_s:.1f} s, {n_reads / train_s:,.0f} a second: "
        f"each of the {training.n_stored_chunks:,} of the training steps "
        f"{n_reads / training.n_stored_chunks / recipe.epochs:.2f} times an epoch"
    )
    return training


def print_scores(forecasts: Forecasts, names: list[str], labels: Labels) -> None:
    """Print error and skill of every channel."""
    first, last = (int(sample) for sample in forecasts.samples[[0, -1]])
    print(
        f"\n{len(forecasts.samples)} forecasts from held-back steps, "
        f"{labels.date(first)} to {labels.date(last)}:"
    )
    print(f"{'':>10} {'units':>8} {'RMSE':>10} {'persistence':>12} {'skill':>7}")
    scores = (forecasts.rmse(), forecasts.persistence_rmse(), forecasts.skill())
    for name, *values in zip(names, *(score.tolist() for score in scores), strict=True):
        rmse, persistence, skill = values
        unit = labels.units.get(name.partition("[")[0], "")
        print(f"{name:>10} {unit:>8} {rmse:>10.4g} {persistence:>12.4g} {skill:>7.2f}")
    print("skill is 1 - MSE / MSE of persistence: 0 is no better than that nothing changes\n")


def channel_names(data: Data) -> list[str]:
    """Name the channels of the targets; with a number where a variable has several."""
    size = len(data.target_channels) // len(data.targets)
    if size == 1:
        return list(data.targets)
    return [f"{name}[{i}]" for name in data.targets for i in range(size)]


def draw(arguments: argparse.Namespace, data: Data, forecasts: Forecasts, labels: Labels) -> None:
    """Draw one held-back forecast, one that is neither the best nor the worst."""
    names = channel_names(data)
    wanted = arguments.draw or names
    channels = [i for i, name in enumerate(names) if name in wanted or name.split("[")[0] in wanted]
    chosen = Forecasts(
        forecasts.samples,
        *(m[:, channels] for m in (forecasts.truth, forecasts.forecast, forecasts.persistence)),
    )
    path = arguments.out / "forecast.png"
    draw_figure(
        path,
        chosen,
        [names[i] for i in channels],
        labels,
        which=typical_forecast(forecasts),
        lead=arguments.lead,
    )
    print(f"figure: {path}")


def compare_with_killed(training: Training, unbroken: pathlib.Path, seed: int | None) -> None:
    """Train again in a process that is killed three times, and compare."""
    killed = unbroken.with_name("killed.pt")
    # The last of two equal options counts, so that everything else is as it was given here.
    arguments = ["-m", __package__ or "", *sys.argv[1:], "--train-only", str(killed)]
    kills = choose_kills(training.n_steps, training.recipe.checkpoint_every, seed)
    with progress("killed and resumed", training.n_steps) as bar:
        story = train_and_kill(arguments, kills, lambda step, loss: advance(bar, step, loss))
    for end, start in zip(story.killed_after, story.resumed_after, strict=True):
        print(f"killed after step {end}, resumed from the checkpoint of step {start}")
    n_losses, n_weights = count_differences(story, training.losses, killed, unbroken)
    n_tensors = len(training.model.state_dict())
    print(
        f"{len(story.losses)} losses of the killed training (some steps were done twice), "
        f"{n_losses} differ from the uninterrupted one; {n_tensors} tensors of final weights, "
        f"{n_weights} differ"
    )
    if n_losses or n_weights:
        raise SystemExit("resuming changed the training: this should never happen")
    print("every loss and the final weights are bit-identical")


def progress(title: str, n_steps: int) -> "tqdm[None]":
    """A bar over training steps."""
    return tqdm(total=n_steps, desc=title, unit="step", mininterval=0.5)


def advance(bar: "tqdm[None]", step: int, loss: float) -> None:
    """Move a bar to a step, forwards or, after a kill, backwards."""
    bar.n = step
    bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
    bar.update(0)


if __name__ == "__main__":
    try:
        main()
    except tdi.errors.InSituError as error:
        # Its message says what is wrong with the store or the options, and what to do.
        sys.exit(f"{type(error).__name__}: {error}")
