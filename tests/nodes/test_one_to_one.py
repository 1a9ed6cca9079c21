import pytest
import torchdata.nodes
from torchdata.nodes import Batcher, IterableWrapper, Mapper, ParallelMapper, Unbatcher

import torchdata_insitu as tdi
from tests.contracts.refusals import refused
from tests.small_loaders import make_gather
from torchdata_insitu.errors import PlanError
from torchdata_insitu.nodes.one_to_one import check_keeps_draws, check_one_to_one, is_stateless


class Own(torchdata.nodes.BaseNode):
    """A node of somebody else."""


def same(item):
    return item


KEEP = {
    "Mapper": lambda node: Mapper(node, same),
    "ParallelMapper": lambda node: ParallelMapper(node, same, num_workers=1),
    "Prefetcher": lambda node: torchdata.nodes.Prefetcher(node, 1),
}
CHANGE = {
    "Batcher": lambda node: Batcher(node, 2),
    "Unbatcher": Unbatcher,
    "IterableWrapper": IterableWrapper,
}


@pytest.mark.parametrize("name", KEEP)
def test_nodes_of_torchdata_that_map_are_let_through(name):
    node = KEEP[name](make_gather())
    check_one_to_one(node, "somebody")
    assert is_stateless(node)


@pytest.mark.parametrize("name", CHANGE)
def test_nodes_that_change_the_count_are_refused_with_who_cannot_use_them(name):
    node = CHANGE[name](make_gather())
    with refused(PlanError, name, "changes the number of items", "somebody cannot resume it"):
        check_one_to_one(node, "somebody")
    assert not is_stateless(node)


def test_an_order_that_is_not_kept_is_refused():
    node = ParallelMapper(make_gather(), same, num_workers=2, in_order=False)
    with refused(PlanError, "ParallelMapper", "out of order", "somebody"):
        check_one_to_one(node, "somebody")


def test_nodes_of_others_may_keep_state():
    check_one_to_one(Own(), "somebody")
    assert not is_stateless(Own())


def test_only_nodes_of_ours_stand_below_a_gather():
    gather = make_gather()
    check_keeps_draws(gather)
    for node in (Own(), Mapper(gather, same), tdi.Prefetcher(gather)):
        with refused(PlanError, type(node).__name__, "between planner and gather"):
            check_keeps_draws(node)
