"""The data module and the callback for Lightning, over either of its two packages.

`lightning` and `pytorch_lightning` hold the same classes twice, and a `Trainer` of one takes no
data module of the other. `torchdata_insitu.InSituDataModule` and `InSituResume` are of the package
that is imported already, else of the one that is installed; `for_base` gives those of a package.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

__all__ = ["BASES", "for_base"]

BASES = {"lightning": "on_lightning", "pytorch_lightning": "on_pytorch_lightning"}
"""Module of ours by the package that its classes are made for, the preferred one first."""


def for_base(name: str | None = None) -> ModuleType:
    """The module with `InSituDataModule` and `InSituResume` for a package.

    Args:
        name: `"lightning"` or `"pytorch_lightning"`; None for the one that is imported already,
            else the one that is installed, `lightning` before the other.

    Raises:
        ImportError: there is no such package.

    Example:
        >>> from torchdata_insitu.lightning_ import for_base
        >>> for_base("lightning").InSituDataModule.__mro__[2].__module__
        'lightning.pytorch.core.datamodule'
    """
    if name is None:
        name = _base_in_use()
    if name not in BASES:
        msg = f"{name!r} is no package of Lightning: choose one of {', '.join(BASES)}"
        raise ImportError(msg)
    return importlib.import_module(f"{__name__}.{BASES[name]}")


def _base_in_use() -> str:
    loaded = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
    for name, module in loaded.items():
        if module in sys.modules:
            return name
    for name in BASES:
        if importlib.util.find_spec(name) is not None:
            return name
    msg = (
        "neither lightning nor pytorch_lightning is installed, which InSituDataModule and "
        "InSituResume need: pip install 'torchdata-insitu[lightning]'"
    )
    raise ImportError(msg)
