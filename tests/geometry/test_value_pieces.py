import math

import numpy as np
import pytest

from torchdata_insitu.geometry.value_pieces import PIECE_ITEMS, pieces


@pytest.mark.parametrize(
    "shape",
    [
        (),
        (0,),
        (3, 0),
        (7,),
        (PIECE_ITEMS + 1,),
        (3 * PIECE_ITEMS, 1),
        (5, 300, 500),
        (2, 3, PIECE_ITEMS + 5),
        (1, PIECE_ITEMS),
        (2, 1, 1, 2 * PIECE_ITEMS),
    ],
)
def test_each_value_is_in_one_piece_and_no_piece_is_large(shape):
    seen = np.zeros(shape, np.uint8)
    n_pieces = 0
    for piece in pieces(shape):
        part = seen[piece]
        assert np.shares_memory(part, seen) or not part.size
        assert part.size <= PIECE_ITEMS
        part += 1
        n_pieces += 1
    assert (seen == 1).all()
    assert n_pieces <= 1 + 4 * math.prod(shape) / PIECE_ITEMS
