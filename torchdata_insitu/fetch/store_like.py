"""What may be given where a store is wanted."""

from os import PathLike

from zarr.abc.store import Store

__all__ = ["Store", "StoreLike"]

type StoreLike = Store | str | PathLike[str]
"""A Zarr store, or a path or URL that `open_store` takes."""
