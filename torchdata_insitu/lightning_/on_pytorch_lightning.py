"""The classes for trainers of the package `pytorch_lightning`."""

from __future__ import annotations

from typing import ClassVar

from pytorch_lightning import Callback, LightningDataModule

from torchdata_insitu.lightning_.datamodule import DataModuleHooks
from torchdata_insitu.lightning_.resume import ResumeHooks

__all__ = ["InSituDataModule", "InSituResume"]


class InSituResume(ResumeHooks, Callback):  # noqa: D101 - that of its first base
    pass


class InSituDataModule(DataModuleHooks, LightningDataModule):  # noqa: D101 - as above
    base: ClassVar[str] = "pytorch_lightning"
    resume: ClassVar[type[ResumeHooks]] = InSituResume
