"""The main job: what it says about itself is true."""

import subprocess
import sys

import numpy as np
import pytest
import torch
import zarr

from examples.storm_forecast.data import Data, Source, as_maps, read_statistics
from examples.storm_forecast.kill_and_resume import Interrupted, choose_kills, count_differences
from examples.storm_forecast.model import ForecastModel
from examples.storm_forecast.scores import Forecasts, make_forecasts
from examples.storm_forecast.train import Recipe, Training

from .test_make_store import STORE

NAMES = ("t", "v500")


def go_on(step, loss):
    """Let the training continue."""


@pytest.fixture
def torch_settings():
    """Undo what training sets for the whole process."""
    n_threads, is_fixed = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(n_threads)
    torch.use_deterministic_algorithms(mode=is_fixed)


@pytest.fixture
def data():
    source = Source(str(STORE), NAMES, NAMES, sample_axis="time", lead=1, held_back=0.22)
    return Data(source, batch_size=8, block_chunks=3, budget=0.5, seed=0)


@pytest.fixture(scope="module")
def fields():
    """The arrays (2, 64, 33, 36) with NaN where missing, as plain Zarr and NumPy give them."""
    group = zarr.open_group(STORE, mode="r")
    stored = np.stack([group[name][:] for name in NAMES])
    return np.where(stored == -9999, np.nan, stored)


def test_statistics_are_those_of_the_training_steps(data, fields):
    with data.ordered_loader("train") as loader:
        found = read_statistics(loader, data.target_channels)
    now, later = fields[:, 1:50], fields[:, 2:51]
    np.testing.assert_allclose(found.mean, np.nanmean(now, axis=(1, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(found.std, np.nanstd(now, axis=(1, 2, 3)), rtol=1e-4)
    change = np.sqrt(np.nanmean((later - now) ** 2, axis=(1, 2, 3)))
    np.testing.assert_allclose(found.change, change, rtol=1e-5)


def test_no_held_back_window_touches_a_training_target(data):
    with data.ordered_loader("train") as loader:
        trained = torch.cat([batch["sample_index"] for batch in loader]) + 1
    with data.ordered_loader("held back") as loader:
        first_read = torch.cat([batch["sample_index"] for batch in loader]) - 1
    assert first_read.min() > trained.max()


def test_untrained_model_is_persistence(data, fields):
    model = ForecastModel(len(NAMES), data.target_channels)
    with data.ordered_loader("held back") as loader:
        forecasts = make_forecasts(model, loader)
    starts = forecasts.samples.numpy()
    np.testing.assert_array_equal(forecasts.forecast, fields[:, starts].swapaxes(0, 1))
    np.testing.assert_array_equal(forecasts.truth, fields[:, starts + 1].swapaxes(0, 1))
    np.testing.assert_array_equal(forecasts.skill(), [0.0, 0.0])


def test_missing_values_neither_count_nor_spread(data):
    model = ForecastModel(len(NAMES), data.target_channels)
    with data.ordered_loader("train") as loader:
        x, y = as_maps(next(iter(loader)))
    assert y.isnan().any()
    loss = model.loss(x, y)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_skill_is_the_share_of_mean_square_error_taken_away():
    truth = torch.zeros(1, 1, 2, 2)
    forecasts = Forecasts(torch.tensor([0]), truth, truth + 1, truth + 2)
    assert forecasts.skill().tolist() == [0.75]


def test_training_resumes_bit_for_bit(data, tmp_path, torch_settings):
    recipe = Recipe(epochs=2, checkpoint_every=3)
    unbroken = Training(data, recipe, tmp_path / "unbroken.pt")
    unbroken.run(go_on)

    def stop(step, loss):
        if step == 8:
            raise InterruptedError

    stopped = Training(data, recipe, tmp_path / "stopped.pt")
    with pytest.raises(InterruptedError):
        stopped.run(stop)
    stopped.loader.close()
    resumed = Training(data, recipe, tmp_path / "stopped.pt")
    assert len(resumed.losses) == 6
    resumed.run(go_on)
    story = Interrupted(losses=list(enumerate(resumed.losses, start=1)))
    files = (tmp_path / "stopped.pt", tmp_path / "unbroken.pt")
    assert count_differences(story, unbroken.losses, *files) == (0, 0)


def test_a_difference_in_one_bit_is_found(tmp_path):
    weights = torch.ones(3)
    torch.save({"model": {"w": weights}}, tmp_path / "a.pt")
    torch.save({"model": {"w": torch.nextafter(weights, weights + 1)}}, tmp_path / "b.pt")
    story = Interrupted(losses=[(1, 0.5), (2, np.nextafter(0.25, 1.0).item())])
    found = count_differences(story, [0.5, 0.25, 0.125], tmp_path / "a.pt", tmp_path / "b.pt")
    assert found == (2, 1)


def test_kills_are_different_steps_with_a_checkpoint_before_and_steps_after():
    for seed in range(50):
        kills = choose_kills(18, 5, seed)
        assert len(set(kills)) == 3
        assert min(kills) >= 5
        assert max(kills) < 12


@pytest.mark.slow
def test_whole_job_on_another_store(tmp_path):
    rng = np.random.default_rng(0)
    group = zarr.create_group(tmp_path / "other.zarr")
    for name in ("a", "b"):
        values = rng.normal(size=(40, 2, 9, 11)).cumsum(axis=0).astype("f4")
        group.create_array(name, data=values, chunks=(4, 1, 9, 11))
    url = str(tmp_path / "other.zarr")
    arguments = ["-m", "examples.storm_forecast", "--url", url, "--sample-axis", "0"]
    arguments += ["--inputs", "a", "b", "--targets", "b", "--epochs", "20", "--out", str(tmp_path)]
    arguments += ["--block-chunks", "1"]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "every loss and the final weights are bit-identical" in done.stdout
    assert (tmp_path / "forecast.png").read_bytes().startswith(b"\x89PNG")
