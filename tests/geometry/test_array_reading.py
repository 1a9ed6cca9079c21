import pytest
import zarr

from torchdata_insitu.errors import GeometryError
from torchdata_insitu.geometry import array_reading
from torchdata_insitu.geometry.metadata import read_arrays


@pytest.mark.parametrize("other", ["int32", "float64"])
def test_a_dtype_that_zarr_takes_for_another_is_refused(other, monkeypatch):
    """As where somebody registers a data type of their own under a known name."""
    store = zarr.storage.MemoryStore()
    zarr.create_array(store, name="t", shape=(4,), chunks=(2,), dtype="float32")
    parse = array_reading.parse_array_metadata
    monkeypatch.setattr(
        array_reading,
        "parse_array_metadata",
        lambda document: parse({**document, "data_type": other}),
    )
    with pytest.raises(GeometryError, match=f"'t' .* it is float32 here and {other} to"):
        read_arrays(store, "t")
