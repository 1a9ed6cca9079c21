"""The chain by hand: what its node has learned goes through a state with it."""

import itertools

import numpy as np
import pytest
import torch
import zarr

from examples.custom_nodes import __main__ as job
from examples.custom_nodes.archives import make_archives
from examples.custom_nodes.chain import make_loader
from examples.custom_nodes.running_scale import Moments
from torchdata_insitu.testing import check_resume


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    return make_archives(tmp_path_factory.mktemp("archives"))


def test_moments_are_those_of_all_values():
    values = np.random.default_rng(0).normal(280, 9, size=(5, 7, 3))
    moments = Moments()
    for batch in values:
        moments.add(torch.from_numpy(batch))
    assert moments.n == values.size
    np.testing.assert_allclose([moments.mean, moments.std], [values.mean(), values.std()])
    assert Moments().std == 1


def test_batches_are_scaled_by_what_was_seen_of_their_archive(archives):
    stored = [zarr.open_array(archive.url, path="temperature")[:] for archive in archives]
    seen = [[], []]
    with make_loader(archives) as loader:
        for batch in itertools.islice(loader, 12):
            number, days = batch["archive"][0].item(), batch["sample_index"].numpy()
            x = stored[number][np.stack([days - 1, days], axis=1)]
            seen[number].append(x)
            known = np.concatenate(seen[number]).astype("f8")
            expected = (x - known.mean()) / known.std()
            np.testing.assert_allclose(batch["x"].numpy(), expected, rtol=1e-4, atol=1e-4)
            np.testing.assert_array_equal(batch["y"].numpy(), stored[number][days + 1])
    assert all(seen)


def test_it_resumes_exactly_wherever_it_stops(archives):
    with make_loader(archives) as loader:
        n_batches = len(loader)
    positions = [0, 1, n_batches // 2, n_batches - 1, n_batches]
    assert check_resume(lambda: make_loader(archives), positions=positions) == len(positions)


def test_the_job_says_that_both_runs_are_equal(capsys):
    job.main()
    assert "both runs are equal: 140 batches" in capsys.readouterr().out


def test_the_job_notices_a_node_that_forgets(monkeypatch):
    def forgets(self):
        return {"source": self.source.state_dict(), "moments": {n: {} for n in self.moments}}

    monkeypatch.setattr(job.RunningScale, "get_state", forgets)
    with pytest.raises(SystemExit, match="of 140 batches differ"):
        job.main()
