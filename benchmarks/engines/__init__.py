"""Everything that is compared, each in a module of its own and imported when it is asked for."""

import importlib

from benchmarks.engines.engine import Engine

_CLASSES = {
    "ours": "ours:Ours",
    "ours-obstore": "ours:OursThroughObstore",
    "ours-warm": "ours:OursWarm",
    "ceiling": "ceiling:Ceiling",
    "into": "into:Into",
    "memcpy": "memcpy:Memcpy",
    "insitubatch": "insitubatch:InSituBatch",
    "dataloader-0": "dataloader:DataLoaderAlone",
    "dataloader-2": "dataloader:DataLoaderOfTwo",
}
ENGINES = tuple(_CLASSES)


def engine_class(name: str) -> type[Engine]:
    """The class of an engine.

    Args:
        name: One of `ENGINES`.

    Raises:
        ImportError: It needs a library that is not installed; `pip install -e .[bench]` does.
    """
    module, _, class_name = _CLASSES[name].partition(":")
    found: type[Engine] = getattr(importlib.import_module(f"{__name__}.{module}"), class_name)
    return found
