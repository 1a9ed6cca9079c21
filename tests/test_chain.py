import pytest
import torchdata.nodes
from torch.utils.data import SequentialSampler
from torchdata.nodes import (
    BaseNode,
    Batcher,
    IterableWrapper,
    Mapper,
    MultiNodeWeightedSampler,
    ParallelMapper,
    SamplerWrapper,
    Unbatcher,
)

import torchdata_insitu as tdi
from tests.small_loaders import (
    PLENTY,
    all_ids,
    make_gather,
    make_loader,
    shut_down,
    small_store,
    views_of,
)
from torchdata_insitu.chain import Chain
from torchdata_insitu.errors import PlanError
from torchdata_insitu.testing import check_resume


def same(batch):
    return batch


def test_the_parts_of_a_chain_are_found():
    gather = make_gather()
    root = tdi.PinMemory(tdi.Prefetcher(Mapper(gather, same)))
    chain = Chain(root)
    assert (chain.root, chain.gather, chain.pool_node) == (root, gather, gather.source)
    assert chain.fetcher is gather.source.source
    assert chain.planner is gather.planner
    assert chain.graph[:2] == ["PinMemory", "Prefetcher"]


class Own(BaseNode):
    """A node of somebody else that hands on what it gets."""

    def __init__(self, source):
        super().__init__()
        self.source = source

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.source.reset(None if initial_state is None else initial_state["source"])

    def next(self):
        return next(self.source)

    def get_state(self):
        return {"source": self.source.state_dict()}


AFTER = {
    "Mapper": lambda gather: Mapper(gather, same),
    "ParallelMapper": lambda gather: ParallelMapper(gather, same, num_workers=2),
    "torchdata's Prefetcher": lambda gather: torchdata.nodes.Prefetcher(gather, 3),
    "rare snapshots": lambda gather: torchdata.nodes.Prefetcher(gather, 2, snapshot_frequency=3),
    "two Prefetchers": lambda gather: tdi.Prefetcher(torchdata.nodes.Prefetcher(gather, 2), 2),
    "Mapper after ours": lambda gather: Mapper(tdi.Prefetcher(gather, 2), same),
    "a node of one's own": Own,
    "all": lambda gather: tdi.Prefetcher(
        ParallelMapper(Own(Mapper(gather, same)), same, num_workers=2), 2
    ),
}


@pytest.mark.parametrize("name", AFTER)
def test_nodes_that_keep_the_count_change_nothing_and_resume_exactly(name):
    with make_loader() as plain:
        expected = [all_ids(plain) for _ in range(2)]
    with tdi.InSituLoader(AFTER[name](make_gather())) as loader:
        assert [all_ids(loader) for _ in range(2)] == expected
    positions = [0, 1, 4, 6]
    assert check_resume(
        lambda: tdi.InSituLoader(AFTER[name](make_gather())), positions=positions
    ) == len(positions)


def mixed(gather):
    return MultiNodeWeightedSampler(
        {"ours": gather, "theirs": IterableWrapper([])}, {"ours": 1.0, "theirs": 1.0}
    )


REFUSED = {
    "Batcher": lambda gather: Batcher(gather, 2),
    "Unbatcher": Unbatcher,
    "Unbatcher below": lambda gather: tdi.Prefetcher(Mapper(Unbatcher(gather), same)),
    "IterableWrapper": IterableWrapper,
    "SamplerWrapper": SamplerWrapper,
    "MultiNodeWeightedSampler": mixed,
    "two chains": lambda gather: MultiNodeWeightedSampler(
        {"a": gather, "b": make_gather()}, {"a": 1.0, "b": 1.0}
    ),
    "prebatch": lambda gather: ParallelMapper(gather, same, num_workers=0, prebatch=2),
}


@pytest.mark.parametrize("name", REFUSED)
def test_nodes_that_change_the_count_are_refused_with_advice(name):
    with pytest.raises(PlanError, match=r"changes the number of items.*use torchdata's Loader"):
        tdi.InSituLoader(REFUSED[name](make_gather()))


def test_a_mapper_that_hands_on_out_of_order_is_refused_with_advice():
    node = ParallelMapper(make_gather(), same, num_workers=2, in_order=False)
    for root in (node, tdi.Prefetcher(node, 2)):
        with pytest.raises(PlanError, match=r"out of order.*use torchdata's Loader"):
            tdi.InSituLoader(root)


def test_a_node_of_torchdata_that_is_refused_works_with_its_loader():
    """As the advice says."""
    with shut_down(make_gather()) as gather:
        loader = torchdata.nodes.Loader(Batcher(gather, 2, drop_last=False))
        items = iter(loader)
        first = next(items)
        state = loader.state_dict()
        whole = [first, *items]
        loader.load_state_dict(state)
        assert [all_ids(pair) for pair in loader] == [all_ids(pair) for pair in whole[1:]]
        assert len(whole) == 3


def planner_of(store):
    return tdi.ChunkPlanner(views_of(store), batch_size=4)


def test_parts_that_are_missing_are_named():
    store, pool = small_store(), tdi.ChunkPool(PLENTY)
    fetcher = tdi.AsyncChunkFetcher(planner_of(store), store, pool)
    for root, missing in (
        (IterableWrapper([]), "0 ChunkPlanners"),
        (Own(IterableWrapper([])), "0 ChunkPlanners"),
        (planner_of(store), "0 nodes of kind AsyncChunkFetcher"),
        (fetcher, "0 nodes of kind ChunkPoolNode"),
        (tdi.ChunkPoolNode(fetcher, pool), "0 nodes of kind GatherNode"),
    ):
        with pytest.raises(PlanError, match=missing):
            tdi.InSituLoader(root)


def test_nodes_between_planner_and_gather_have_to_keep_the_draws():
    store, pool = small_store(), tdi.ChunkPool(PLENTY)
    planner = planner_of(store)
    for source in (Own(planner), tdi.Prefetcher(planner), Mapper(planner, same)):
        fetcher = tdi.AsyncChunkFetcher(source, store, pool)
        with pytest.raises(PlanError, match=r"between planner and gather.*SegmentNode"):
            tdi.InSituLoader(tdi.GatherNode(tdi.ChunkPoolNode(fetcher, pool)))


def test_an_unsuitable_chain_reads_nothing(monkeypatch):
    class Sampler(SequentialSampler):
        def __iter__(self):
            raise AssertionError

    with pytest.raises(PlanError):
        tdi.InSituLoader(SamplerWrapper(Sampler(range(3))))
