"""The same training from a YAML file, see `config.yaml`."""

from lightning.pytorch.cli import LightningCLI

import torchdata_insitu as tdi

from .training import StepAhead

if __name__ == "__main__":
    # The configuration is in the repository already.
    LightningCLI(StepAhead, tdi.InSituDataModule, save_config_callback=None)
