import pytest
from torchdata.nodes import BaseNode, Mapper

import torchdata_insitu as tdi
from tests.contracts.refusals import refused
from tests.small_loaders import all_ids, make_gather, shut_down
from torchdata_insitu.errors import ClosedError, PlanError
from torchdata_insitu.nodes.branch import Branch, is_foreign
from torchdata_insitu.nodes.verbs import nodes_of_ours
from torchdata_insitu.nodes.verbs import shut_down as end
from torchdata_insitu.planning.cursor import Cursor


def same(batch):
    return batch


class Own(BaseNode):
    pass


@pytest.fixture
def root():
    with shut_down(tdi.PinMemory(tdi.Prefetcher(Mapper(make_gather(), same)))) as root:
        yield root


def test_the_parts_of_a_chain_are_found(root):
    branch = Branch(root)
    gather = root.source.source.source
    assert (branch.root, branch.gather, branch.planner) == (root, gather, gather.planner)
    assert branch.pool_node is gather.source
    assert branch.fetcher is gather.source.source
    names = [type(node).__name__ for node in branch.after_gather()]
    assert names[:2] == ["PinMemory", "Prefetcher"]
    assert "GatherNode" not in names


def test_a_part_that_is_missing_is_named():
    gather = make_gather()
    with refused(PlanError, "0 nodes of kind GatherNode"):
        Branch(gather.source)
    with refused(PlanError, "0 nodes of kind ChunkPoolNode"):
        Branch(gather.source.source)


@pytest.mark.filterwarnings("ignore:PinMemory found no accelerator")
def test_it_starts_anywhere_through_nodes_of_others(root):
    branch = Branch(root)
    expected = all_ids(root)
    for position in (8, 0, 16):
        branch.start(Cursor(0, position, 1))
        assert all_ids(root) == expected[position // 4 :]


@pytest.mark.filterwarnings("ignore:PinMemory found no accelerator")
def test_its_end_returns_everything(root):
    branch = Branch(root)
    next(root)
    branch.shutdown()
    branch.shutdown()
    assert branch.pool_node.pool.n_passes == 0
    with pytest.raises(ClosedError):
        next(root)


def test_nodes_that_know_the_verbs_are_listed_from_the_root_on(root):
    names = [type(node).__name__ for node in nodes_of_ours(root)]
    assert names[:3] == ["Prefetcher", "GatherNode", "ChunkPoolNode"]
    assert sorted(names[3:]) == ["AsyncChunkFetcher", "ChunkPlanner"]
    end(nodes_of_ours(root))


def test_foreign_is_what_can_keep_state_of_its_own(root):
    assert not any(is_foreign(node) for node in Branch(root).after_gather())
    assert is_foreign(Own())
