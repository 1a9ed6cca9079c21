import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torchdata_insitu.planning.run_lengths import RunLengths


@given(st.lists(st.integers(0, 3), max_size=30))
def test_expanding_gives_the_lengths_back(lengths):
    encoded = RunLengths.encode(lengths)
    assert encoded.expand().tolist() == lengths
    assert encoded.n_units == len(lengths)
    assert encoded.total == sum(lengths)
    assert (np.diff(encoded.lengths) != 0).all()
    assert (encoded.counts > 0).all()


def test_digest_never_changes():
    assert RunLengths.encode([24] * 30 + [7]).digest() == "91e2f4d6d9bc8651"


def test_digest_tells_lengths_apart():
    digests = {RunLengths.encode(lengths).digest() for lengths in ([2, 2], [4], [2, 2, 0], [0, 4])}
    assert len(digests) == 4


def test_first_unit_may_be_empty():
    assert RunLengths.encode([0, 0, 3]).counts.tolist() == [2, 1]
