"""What the missing chunks of an array hold whose metadata leave the fill value open."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np

from torchdata_insitu.geometry.array_document import ArrayDocument

_FORMAT_3 = 3
_logger = logging.getLogger(__name__)


def with_fill_value(array: ArrayDocument) -> ArrayDocument:
    """Give an array of format 3 whose fill value is null the one that null means in format 2.

    The specification of format 3 demands a value, and Zarr fails without one. GDAL writes null
    where no value is set apart, which leaves open what a missing chunk holds: as in format 2 it is
    zero. Missing chunks are counted whatever they are filled with.

    Returns:
        The array, or one whose document differs in this value.

    Raises:
        GeometryError: A dtype that no tensor holds.

    Example:
        >>> document = {"zarr_format": 3, "data_type": "complex64", "fill_value": None}
        >>> with_fill_value(ArrayDocument("t2m", document, {})).document["fill_value"]
        [0.0, 0.0]
    """
    document = array.document
    is_null = "fill_value" in document and document["fill_value"] is None
    if array.zarr_format != _FORMAT_3 or not is_null:
        return array
    value = default_fill_value(array.stored_dtype())
    _logger.info("%s has fill_value null: its missing chunks hold %s", array.label, value)
    return replace(array, document={**document, "fill_value": value})


def default_fill_value(dtype: np.dtype) -> Any:
    """The value of format 3 metadata that stands for zero, and for "no time" in times.

    Example:
        >>> default_fill_value(np.dtype("bool")), default_fill_value(np.dtype([("u", "f4")]))
        (False, {'u': 0.0})
    """
    if dtype.fields is not None:
        return {name: default_fill_value(field[0]) for name, field in dtype.fields.items()}
    return {"b": False, "f": 0.0, "c": [0.0, 0.0], "M": "NaT", "m": "NaT"}.get(dtype.kind, 0)
