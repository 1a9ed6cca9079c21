from tests.planning.arrays import make_array
from tests.planning.fake_space import FakeSpace
from torchdata_insitu.planning.anchor_space import AnchorSpace
from torchdata_insitu.planning.draw_space import DrawSpace


def test_anything_with_lengths_draws_and_chunks_is_a_draw_space():
    assert isinstance(FakeSpace([2, 3]), DrawSpace)
    assert isinstance(AnchorSpace({"x": make_array("a", 10, 4)}), DrawSpace)
    assert not isinstance(object(), DrawSpace)
