"""The ten lines of the README read other people's archives with only URL and names changed."""

import pathlib
import re

import numpy as np
import pytest
import xarray as xr
import zarr

import torchdata_insitu as tdi

ROOT = pathlib.Path(__file__).resolve().parent.parent
ASSIGNMENT = re.compile(r'^url, x, y = "([^"]*)", "([^"]*)", "([^"]*)"$', re.MULTILINE)

# Written by netCDF-C, tensorstore and zarrita.js: packed weather, big-endian Zarr v2, microscopy.
STORES = [
    ("foreign-writers/netcdf-c/zarr_t2m.zarr", "t2m", "t2m"),
    ("foreign-writers/tensorstore/v2_bigendian_bz2_dot.zarr", "data", "data"),
    ("foreign-writers/zarrita.js/v3_labels_zstd.zarr", "data", "data"),
]


def readme_block():
    """The one block of Python in the README that opens a store."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    (block,) = [block for block in blocks if ASSIGNMENT.search(block)]
    return block


def run_block(url, x, y):
    """Run the block with another URL and other names; give its variables and its batches."""
    block, n_changed = ASSIGNMENT.subn(f'url, x, y = "{url}", "{x}", "{y}"', readme_block())
    assert n_changed == 1
    batches = []
    keep = block.replace("    print(", "    batches.append(batch), print(")
    variables = {"batches": batches}
    exec(compile(keep, "README.md", "exec"), variables)
    variables["loader"].close()
    return variables


def test_block_has_ten_lines():
    assert len(readme_block().strip().splitlines()) == 10


def test_block_runs_as_it_stands(monkeypatch):
    monkeypatch.chdir(ROOT)
    url, x, y = ASSIGNMENT.search(readme_block()).groups()
    variables = run_block(url, x, y)
    with xr.open_zarr(url, consolidated=False) as dataset:
        check(variables, dataset[x].values, dataset[y].values)


@pytest.mark.parametrize("path, x, y", STORES)
def test_block_runs_on_an_archive_of_another_writer(shared_data, path, x, y):
    variables = run_block(shared_data / path, x, y)
    node = zarr.open(shared_data / path, mode="r")
    values = [
        np.asarray((node[name] if isinstance(node, zarr.Group) else node)[:]) for name in (x, y)
    ]
    if path.endswith("zarr_t2m.zarr"):
        with xr.open_zarr(shared_data / path, consolidated=False) as dataset:
            values = [dataset[name].values for name in (x, y)]
    check(variables, *values)


def check(variables, x, y):
    """Every batch is what plain indexing gives at its anchors, and every anchor comes once."""
    anchors = []
    for batch in variables["batches"]:
        at = batch["sample_index"].numpy()
        np.testing.assert_array_equal(batch["x"].numpy(), np.stack([x[at - 1], x[at]], axis=1))
        np.testing.assert_array_equal(batch["y"].numpy(), y[at + 1])
        anchors.extend(at.tolist())
    ((start, stop),) = variables["splits"]["train"].ranges
    assert sorted(anchors) == list(range(max(start, 1), stop))
    assert variables["state"]["epoch"] == 1


def test_the_block_for_lightning_opens_the_archive(monkeypatch):
    monkeypatch.chdir(ROOT)
    (block,) = re.findall(
        r"^```python\n(data = .*?)^```$",
        (ROOT / "README.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    url, x, y = ASSIGNMENT.search(readme_block()).groups()
    trainer = Recorder()
    variables = {"tdi": tdi, "url": url, "x": x, "y": y, "model": "a model", "trainer": trainer}
    exec(compile(block, "README.md", "exec"), variables)
    assert trainer.shapes == {(2, 33, 36)}


class Recorder:
    """Does with a data module what a trainer does."""

    def fit(self, model, datamodule, ckpt_path):
        assert (model, ckpt_path) == ("a model", "last")
        datamodule.setup("fit")
        self.shapes = {tuple(batch["x"].shape[1:]) for batch in datamodule.train_dataloader()}
        datamodule.teardown("fit")
