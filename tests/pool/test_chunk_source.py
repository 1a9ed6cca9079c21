import copy
import dataclasses
import math
import pickle

import numpy as np
import pytest

from tests.each_case import each_case
from torchdata_insitu.pool.chunk_source import ChunkSource, SlotShape

SHAPES = [
    SlotShape("a", 4, (3, 5), "<f4", 4, 10),
    SlotShape("b", 1, (), "|u1", 1, 1),
    SlotShape("c", 7, (3,), "<c16", 16, 2, n_stored=6),
]


def is_right(shape):
    memory = np.empty((shape.rows, *shape.field_shape), shape.dtype)
    assert shape.row_bytes == memory[0].nbytes
    assert shape.slot_bytes == memory.nbytes


@each_case("shape", SHAPES)
def test_sizes_are_those_of_the_memory(shape):
    is_right(shape)


def test_rows_of_an_empty_field_have_a_byte():
    shape = SlotShape("a", 4, (3, 0), "<f4", 4, 10)
    assert (shape.row_bytes, shape.slot_bytes) == (1, 4)


@each_case("shape", SHAPES)
def test_copies_have_the_same_sizes(shape):
    for other in (pickle.loads(pickle.dumps(shape)), copy.copy(shape), copy.deepcopy(shape)):
        assert other == shape
        assert hash(other) == hash(shape)
        is_right(other)


@each_case(
    "change",
    [{"rows": 9}, {"field_shape": (2, 2)}, {"dtype": "<f8", "item_bytes": 8}, {"name": "z"}],
)
def test_what_is_replaced_has_the_sizes_of_its_own(change):
    for shape in SHAPES:
        other = dataclasses.replace(shape, **change)
        assert (other == shape) == all(getattr(shape, k) == v for k, v in change.items())
        if "dtype" in change or np.dtype(other.dtype).itemsize == other.item_bytes:
            is_right(other)


@pytest.mark.parametrize("size", ["row_bytes", "slot_bytes"])
def test_sizes_are_worked_out_and_not_given(size):
    with pytest.raises(TypeError):
        SlotShape("a", 4, (3,), "<f4", 4, 10, **{size: 1})
    with pytest.raises(ValueError, match=size):
        dataclasses.replace(SHAPES[0], **{size: 1})
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(SHAPES[0], size, 1)


def test_sizes_beyond_32_bits_are_whole():
    shape = SlotShape("a", 2**20, (2**10, 2**10), "<f8", 8, 10)
    assert shape.slot_bytes == math.prod((2**20, 2**20, 8))


def test_sources_are_equal_in_every_field_or_not_at_all():
    source = ChunkSource("store", "a", "decode")
    others = [
        source._replace(**{name: "other" if name != "transforms" else ("t",)})
        for name in source._fields
    ]
    assert len({source, *others}) == 1 + len(others)
    assert pickle.loads(pickle.dumps(source)) == source
