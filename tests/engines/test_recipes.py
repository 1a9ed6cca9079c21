"""The recipes of the guide, each started with torchrun as it stands there."""

import pytest

from tests.processes import ROOT, run_torchrun
from tests.test_docs import BLOCK
from torchdata_insitu.testing import make_store

PAGE = ROOT / "docs/guide/many-ranks.md"
# Where each rank stands at the end, in a file of its own.
TELL = (
    "open(f'rank-{torch.distributed.get_rank()}', 'w').write(f'{loader.epoch} {loader.position}')"
)
RECIPES = {"DistributedDataParallel": 2, "fully_shard": 4, "Accelerator": 2}


def test_every_recipe_is_tried():
    scripts = BLOCK.findall(PAGE.read_text())
    assert len(scripts) == len(RECIPES)
    for script, n_ranks in zip(scripts, RECIPES.values(), strict=True):
        assert script.startswith(f"# torchrun --nproc-per-node {n_ranks} train.py")


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains(name, tmp_path):
    make_store({"t2m": (40, 2, 3)}, chunks=(4, 2, 3), path=tmp_path / "era5.zarr")
    (script,) = (found for found in BLOCK.findall(PAGE.read_text()) if name in found)
    told = script.replace("loader.close()", f"{TELL}\nloader.close()")
    assert told != script
    (tmp_path / "train.py").write_text(told)
    status, said = run_torchrun(
        tmp_path / "train.py", n_ranks=RECIPES[name], timeout_s=110, folder=tmp_path
    )
    assert status == 0, said
    for rank in range(RECIPES[name]):
        assert (tmp_path / f"rank-{rank}").read_text() == "1 0"
    assert (tmp_path / "checkpoint").exists() == (name == "Accelerator")
