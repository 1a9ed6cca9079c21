import pytest
from torchdata.nodes import BaseNode, IterableWrapper, Mapper, MultiNodeWeightedSampler

import torchdata_insitu as tdi
from tests.small_loaders import make_gather
from torchdata_insitu.errors import PlanError
from torchdata_insitu.nodes.graph import find_planner, walk


class Node(BaseNode):
    def __init__(self, **attributes):
        super().__init__()
        vars(self).update(attributes)


def test_every_node_of_a_chain_is_found_once_and_the_root_first():
    kinds = [type(node).__name__ for node in walk(tdi.Prefetcher(make_gather()))]
    assert kinds[0] == "Prefetcher"
    assert sorted(kinds[1:]) == ["AsyncChunkFetcher", "ChunkPlanner", "ChunkPoolNode", "GatherNode"]


def test_nodes_in_collections_and_under_any_name_are_found():
    leaves = [Node() for _ in range(4)]
    root = Node(left=leaves[0], several=[leaves[1], 3], named={"a": leaves[2]}, pair=(leaves[3],))
    assert list(walk(root)) == [root, *leaves]


def test_a_node_is_visited_once_however_often_it_is_reached():
    shared = Node()
    root = Node(left=Node(source=shared), right=Node(source=shared))
    shared.back = root
    assert list(walk(root)) == [root, root.left, root.right, shared]


def test_nodes_of_torchdata_are_walked_through():
    gather = make_gather()
    mixed = MultiNodeWeightedSampler(
        {"ours": gather, "theirs": IterableWrapper([])}, {"ours": 0.5, "theirs": 0.5}
    )
    for root in (Mapper(gather, str), mixed):
        assert find_planner(root) is gather.planner


def test_one_planner_is_needed():
    with pytest.raises(PlanError, match="IterableWrapper stands on 0 ChunkPlanners"):
        find_planner(IterableWrapper([]))
    with pytest.raises(PlanError, match="Node stands on 2 ChunkPlanners"):
        find_planner(Node(one=make_gather(), two=make_gather()))
