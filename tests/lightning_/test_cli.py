"""A training from a YAML file alone."""

import pytest
from lightning.pytorch.cli import LightningCLI

import torchdata_insitu as tdi
from tests.lightning_.trainings import QUIET, Ledger, small_store

pytestmark = [
    *QUIET,
    # LightningCLI calls jsonargparse by names that it will drop.
    *(
        pytest.mark.filterwarnings(rf"ignore:\s*{message}:DeprecationWarning")
        for message in (
            "By default only one JsonargparseDeprecationWarning per type is shown",
            "``ArgumentParser.add_instantiator`` was deprecated",
            "``instantiate_classes`` was deprecated",
            "skip_none parameter was deprecated",
        )
    ),
]

YAML = """
trainer:
  max_epochs: 2
  accelerator: cpu
  logger: false
  enable_checkpointing: false
  enable_progress_bar: false
  enable_model_summary: false
data:
  url: {url}
  views:
    x: {{arrays: t2m}}
    y: {{arrays: [t2m, t2m], window: [-1, 0], shift: 1}}
  split: {{train: [0, 24], val: [24, 34]}}
  batch_size: 4
  block_chunks: 3
  budget_bytes: 10%
"""


def run(tmp_path, text, data=tdi.InSituDataModule):
    config = tmp_path / "config.yaml"
    config.write_text(text)
    return LightningCLI(
        Ledger,
        data,
        args=["fit", "--config", str(config)],
        save_config_callback=None,
        seed_everything_default=0,
    )


@pytest.mark.parametrize(
    "split, n_train",
    [("{train: [0, 24], val: [24, 34]}", 23), ("{train: 0.5, val: 0.5}", 16), ("null", 33)],
)
def test_a_yaml_file_trains(tmp_path, monkeypatch, split, n_train):
    monkeypatch.setattr("sys.argv", ["train"])
    small_store(path=tmp_path / "store.zarr")
    text = YAML.format(url=tmp_path / "store.zarr")
    cli = run(tmp_path, text.replace("{train: [0, 24], val: [24, 34]}", split))
    spec = cli.datamodule._specs["y"]
    assert spec == tdi.ViewSpec(("t2m", "t2m"), window=(-1, 0), shift=1)
    batches = [entry[0] for entry in cli.model.entries if not isinstance(entry, str)]
    assert len(batches) == 2 * -(-n_train // 4)
