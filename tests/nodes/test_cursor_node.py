"""What holds for every node of the chain: where `reset` goes, what states and copies say."""

import copy
import functools
import pickle
import threading

import pytest

import torchdata_insitu as tdi
from tests.small_loaders import PLENTY, N, in_forked_child, shut_down, small_store, views_of
from torchdata_insitu.errors import ClosedError, PlanError, StateError
from torchdata_insitu.nodes.segment_node import FetchedSegment, ResidentSegment
from torchdata_insitu.planning.cursor import Cursor
from torchdata_insitu.testing import CountingStore

pytestmark = pytest.mark.filterwarnings("ignore:PinMemory found no accelerator")

NODES = ("planner", "segment_node", "fetcher", "pool_node", "gather", "prefetcher", "pin_memory")
each_node = pytest.mark.parametrize("name", NODES)


class KeepsAll(tdi.SegmentNode):
    pass


def make(name, store=None, **plan):
    """A chain that ends with the node of that name."""
    store = small_store() if store is None else store
    pool = tdi.ChunkPool(PLENTY)
    plan = {"batch_size": 4, "block_chunks": 1, "seed": 1, **plan}
    node = tdi.ChunkPlanner(views_of(store), **plan)
    further = {
        "segment_node": KeepsAll,
        "fetcher": lambda source: tdi.AsyncChunkFetcher(source, store, pool),
        "pool_node": lambda source: tdi.ChunkPoolNode(source, pool),
        "gather": tdi.GatherNode,
        "prefetcher": tdi.Prefetcher,
        "pin_memory": tdi.PinMemory,
    }
    for known in NODES[1 : NODES.index(name) + 1]:
        node = further[known](node)
    return node


@pytest.fixture
def node(request, name):
    with shut_down(make(name)) as node:
        yield node


def draws(item):
    """The samples of an item; what it leases is given back."""
    if isinstance(item, dict):
        return item["sample_index"].tolist()
    if isinstance(item, FetchedSegment):
        item.admission.wait()
        return item.segment.draws[:, 0].tolist()
    if isinstance(item, ResidentSegment):
        item.release()
        return item.segment.draws[:, 0].tolist()
    return item.draws[:, 0].tolist()


def rest(node):
    return [draws(item) for item in node]


def place(node):
    """Epoch and position the state of a node names."""
    state = node.state_dict()
    while "source" in state:
        state = state["source"]
    return state["epoch"], state["position"]


@functools.cache
def epoch_of(name, number):
    """What a node hands out in an epoch."""
    with shut_down(make(name)) as node:
        for _ in range(number):
            rest(node)
            node.reset(None)
        return rest(node)


@each_node
def test_reset_without_an_item_stays_in_the_epoch(node, name):
    for _ in range(3):
        node.reset(None)
        assert place(node) == (0, 0)
    assert rest(node) == epoch_of(name, 0)


@each_node
def test_reset_after_an_item_goes_to_the_next_epoch(node, name):
    draws(next(node))
    node.reset(None)
    assert place(node) == (1, 0)
    node.reset(None)
    assert place(node) == (1, 0)
    assert rest(node) == epoch_of(name, 1)


@each_node
def test_reset_after_the_end_goes_to_the_next_epoch(node, name):
    rest(node)
    assert place(node) == (0, N)
    node.reset(None)
    assert rest(node) == epoch_of(name, 1)


@each_node
def test_reset_goes_to_the_next_epoch_from_a_state_of_the_end(node, name):
    rest(node)
    end = node.state_dict()
    with shut_down(make(name)) as fresh:
        fresh.reset(end)
        fresh.reset(None)
        assert place(fresh) == (1, 0)


@each_node
def test_reset_goes_to_the_start_of_an_epoch_whose_middle_was_only_loaded(node, name):
    draws(next(node))
    middle = node.state_dict()
    node.reset(middle)
    node.reset(None)
    assert place(node) == (0, 0)


@each_node
def test_reset_follows_seek_once(node, name):
    rest(node)
    for found in (node, *sources(node)):
        if hasattr(found, "seek"):
            found.seek(Cursor(5, 8, 1))
    node.reset(None)
    assert place(node) == (5, 8)
    node.reset(None)
    assert place(node) == (5, 0)


def sources(node):
    while hasattr(node, "source"):
        node = node.source
        yield node


@each_node
def test_state_reads_nothing_and_starts_nothing(name):
    store = CountingStore(small_store())
    before = threading.active_count()
    with shut_down(make(name, store)) as node:
        store.reset()
        assert place(node) == (0, 0)
        node.reset(node.state_dict())
        assert node.state_dict() == node.state_dict()
        assert (store.reads(), threading.active_count()) == (0, before)


@each_node
def test_a_refused_state_leaves_the_node_as_it_was(node, name):
    first = draws(next(node))
    state = node.state_dict()
    bad = copy.deepcopy(state)
    inner = bad
    while "source" in inner:
        inner = inner["source"]
    inner["plan"]["seed"] = 99
    for refused in (bad, {"num_yielded": 3, "root": {}}, {"source": {"position": 3}}):
        with pytest.raises(StateError):
            node.reset(refused)
    assert node.state_dict() == state
    assert [first, *rest(node)] == epoch_of(name, 0)
    node.reset(None)
    assert place(node) == (1, 0)


@each_node
def test_a_state_is_fresh_each_time(node, name):
    first = node.state_dict()
    copied = copy.deepcopy(first)
    draws(next(node))
    assert first == copied
    assert node.state_dict() != first


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda node: pickle.loads(pickle.dumps(node))])
@pytest.mark.parametrize("n_before", [0, 2])
@each_node
def test_a_copy_stands_where_the_node_stands(node, name, n_before, copied):
    expected = epoch_of(name, 0)
    for _ in range(n_before):
        draws(next(node))
    with shut_down(copied(node)) as other:
        assert other.state_dict() == node.state_dict()
        assert rest(other) == expected[n_before:]
        other.reset(None)
        assert rest(other) == epoch_of(name, 1)
    assert rest(node) == expected[n_before:]


@each_node
def test_a_node_that_was_shut_down_says_so_and_can_be_reset(node, name):
    if name == "planner":
        return
    draws(next(node))
    state = node.state_dict()
    for _ in range(2):
        for found in (node, *sources(node)):
            if hasattr(found, "shutdown"):
                found.shutdown()
    for _ in range(2):
        with pytest.raises(ClosedError, match="reset it"):
            next(node)
    assert node.state_dict() == state
    node.reset(state)
    assert rest(node) == epoch_of(name, 0)[1:]


class Breaks(tdi.SegmentNode):
    n_calls = 0

    def map(self, segment):
        type(self).n_calls += 1
        if type(self).n_calls == 3:
            raise LookupError("broken here")
        return segment


@pytest.mark.parametrize("name", NODES[2:])
def test_an_error_is_raised_until_the_reset_and_the_state_stays_before_it(name, monkeypatch):
    monkeypatch.setattr(Breaks, "n_calls", 0)
    with shut_down(make(name)) as node:
        segment_node = next(found for found in sources(node) if isinstance(found, KeepsAll))
        segment_node.__class__ = Breaks
        delivered = []
        with pytest.raises(LookupError, match="broken here") as raised:
            delivered.extend(map(draws, node))
        for _ in range(2):
            with pytest.raises(LookupError) as again:
                next(node)
            assert again.value is raised.value
        expected = epoch_of(name, 0)
        assert delivered == expected[: len(delivered)]
        assert len(delivered) < len(expected)
        node.reset(node.state_dict())
        assert rest(node) == expected[len(delivered) :]


@pytest.mark.parametrize("name", NODES[:2])
def test_a_cursor_inside_a_batch_of_another_rank_is_refused(name):
    with shut_down(make(name, rank=0, world_size=2, batch_size=3)) as node:
        draws(next(node))
        state = node.state_dict()
        assert "origin" in state
    with shut_down(make(name, rank=1, world_size=2, batch_size=3)) as other:
        before = other.state_dict()
        with pytest.raises(StateError, match="inside a batch"):
            other.reset(state)
        assert other.state_dict() == before


@each_node
def test_ranks_are_looked_up_at_the_first_use(name, monkeypatch):
    with shut_down(make(name)) as node:
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with shut_down(make(name, rank=1, world_size=2)) as told:
            assert draws(next(node)) == draws(next(told))


@each_node
def test_too_few_draws_for_the_ranks_are_refused_at_the_first_use(name, monkeypatch):
    with shut_down(make(name)) as node:
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "40")
        with pytest.raises(PlanError, match=r"22 draws .* 4 on\s+40 ranks"):
            next(node)


@each_node
def test_a_forked_child_is_told_to_spawn(node, name):
    draws(next(node))

    def use_in_child():
        for use in (node.__next__, lambda: node.reset(None) or next(node)):
            with pytest.raises(ClosedError, match="spawn"):
                use()
        if hasattr(node, "shutdown"):
            node.shutdown()

    assert in_forked_child(use_in_child) == ""
    assert len(draws(next(node))) > 0
