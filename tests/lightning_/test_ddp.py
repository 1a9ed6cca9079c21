"""Real processes under Lightning's `ddp`: resumed on fewer and on more of them."""

import json

import pytest

from tests.processes import run_python
from tests.small_loaders import flat
from torchdata_insitu.testing import make_store

TIMEOUT_S = 110
N_TRAIN, N_VAL = 48, 10


def run(folder, **options):
    """Train on some ranks; gives what each of them wrote down."""
    folder.mkdir()
    defaults = {"reload": 1, "saves": False, "ckpt_path": None, "seeds": [0, 0, 0]}
    defaults["strategy"] = "ddp"
    options = {**defaults, "folder": str(folder), **options}
    _, said = run_python(
        *("-m", "tests.lightning_.ddp_training", json.dumps(options)), timeout_s=TIMEOUT_S
    )
    files = [folder / f"rank-{rank}.json" for rank in range(options["n_ranks"])]
    assert all(file.exists() for file in files), said
    return [json.loads(file.read_text()) for file in files]


def epochs_of(ranks):
    """The samples of each epoch over all ranks, and the numbers of batches on each."""
    samples, n_batches = {}, {}
    for rank in ranks:
        epoch = None
        for entry in rank["entries"]:
            if isinstance(entry, str):
                epoch = int(entry.split()[1])
                n_batches.setdefault(epoch, []).append(0)
            else:
                # A run that goes on in mid-epoch does not say so.
                epoch = 0 if epoch is None else epoch
                samples.setdefault(epoch, []).extend(entry[0])
                if epoch in n_batches:
                    n_batches[epoch][-1] += 1
    return samples, n_batches


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """A store, a checkpoint in mid-epoch of a training on two ranks, and what each rank did."""
    folder = tmp_path_factory.mktemp("two_ranks")
    url = str(folder / "store.zarr")
    make_store({"t2m": (N_TRAIN + N_VAL, 2, 3)}, chunks=(2, 2, 3), path=url)
    ranks = run(folder / "run", url=url, n_ranks=2, n_epochs=1, saves=True)
    return url, str(folder / "run" / "2-on_train_batch_end.ckpt"), ranks


# The first one, for it alone waits for the training of the others too.
@pytest.mark.slow
def test_all_ranks_together_have_every_sample_once(before):
    *_, ranks = before
    assert sorted(epochs_of(ranks)[0][0]) == list(range(N_TRAIN))
    validated = flat(rank["validated"] for rank in ranks)
    assert sorted(validated) == list(range(N_TRAIN, N_TRAIN + N_VAL))


@pytest.mark.slow
@pytest.mark.parametrize(
    "n_ranks, strategy", [(1, "ddp"), (2, "ddp"), (3, "ddp"), (2, "ddp_spawn")]
)
def test_ddp_gloo_elastic_resume_and_next_epoch_full(n_ranks, strategy, before, tmp_path):
    url, ckpt_path, ranks = before
    done = flat(entry[0] for rank in ranks for entry in rank["entries"][1:4])
    assert len(done) == N_TRAIN // 2
    options = {"url": url, "ckpt_path": ckpt_path, "strategy": strategy}
    resumed = run(tmp_path / "run", n_ranks=n_ranks, n_epochs=2, **options)
    assert [rank["error"] for rank in resumed] == [None] * n_ranks
    samples, n_batches = epochs_of(resumed)
    assert sorted(done + samples[0]) == list(range(N_TRAIN))
    assert sorted(samples[1]) == list(range(N_TRAIN))
    assert n_batches[1] == [N_TRAIN // (4 * n_ranks)] * n_ranks


@pytest.mark.slow
def test_fewer_ranks_in_mid_epoch_need_loaders_that_are_asked_for_anew(before, tmp_path):
    url, ckpt_path, _ = before
    options = {"url": url, "ckpt_path": ckpt_path, "reload": 0}
    (only,) = run(tmp_path / "run", n_ranks=1, n_epochs=2, **options)
    assert "reload_dataloaders_every_n_epochs=1" in only["error"]


@pytest.mark.slow
def test_every_rank_says_what_one_rank_could_not_load(before, tmp_path):
    url, ckpt_path, _ = before
    options = {"url": url, "ckpt_path": ckpt_path, "seeds": [0, 1]}
    first, second = run(tmp_path / "run", n_ranks=2, n_epochs=2, **options)
    assert first["error"] == second["error"]
    assert first["error"].startswith("rank 1 failed: StateError")
    assert "seed was 0 and is 1" in first["error"]
