"""Small mixes of chains, and what tests ask of their batches."""

import threading

import torchdata_insitu as tdi
from tests.fake_stores import NeverAnswers, is_chunk
from tests.small_loaders import PLENTY, ids, small_store, views_of
from torchdata_insitu.planning.mix_choices import MixChoices
from torchdata_insitu.planning.mix_cursor import PASS_EPOCHS
from torchdata_insitu.planning.mix_steps import MixSteps

SIZES = {"a": 22, "b": 10, "c": 37}
WEIGHTS = {"a": 0.5, "b": 0.2, "c": 0.3}
STOPS = ("first", "all", "cycle")


def same(node):
    return node


def make_source(name, n=None, pool=None, store=None, transforms=(), **plan):
    """A chain up to the gather whose one view has the name of the source."""
    store = small_store(SIZES[name] if n is None else n) if store is None else store
    pool = tdi.ChunkPool(PLENTY) if pool is None else pool
    plan = {"batch_size": 4, "block_chunks": 2, **plan}
    planner = tdi.ChunkPlanner(views_of(store, name), **plan)
    fetcher = tdi.AsyncChunkFetcher(planner, store, pool)
    return tdi.GatherNode(tdi.ChunkPoolNode(fetcher, pool), batch_transforms=transforms)


def make_mix(stop="first", *, seed=0, weights=None, pool=None, wrap=same, names="abc", **plan):
    """A mix of small sources, each wrapped in further nodes."""
    weights = {name: WEIGHTS[name] for name in names} if weights is None else weights
    sources = {name: wrap(make_source(name, pool=pool, **plan)) for name in names}
    return tdi.MixNode(sources, weights, seed=seed, stop=stop)


def make_stalled_mix(pool, wrap=same):
    """A mix of "a" and "b", of which "b" never comes, and what is set once it is asked for."""
    reached = threading.Event()

    def stalls(key):
        if is_chunk(key):
            reached.set()
        return is_chunk(key)

    stalled = NeverAnswers(small_store(SIZES["b"]), stalls)
    sources = {
        "a": wrap(make_source("a", pool=pool)),
        "b": wrap(make_source("b", pool=pool, store=stalled)),
    }
    return tdi.MixNode(sources, {"a": 0.5, "b": 0.5}, stop="all"), reached


def seen(batch):
    """The source of a batch, its samples, and what the values say that they are."""
    (name,) = (key for key in batch if key not in {"sample_index", "valid"})
    values = (batch[name][:, 0, 0] / 6).tolist()
    assert values == ids(batch)
    return name, ids(batch)


def all_seen(batches):
    return [seen(batch) for batch in batches]


def expected_epoch(stop, epoch=0, *, seed=0, names="abc", **plan):
    """The batches of an epoch: choices by the stop rule, filled from each source alone."""
    choices = MixChoices({name: WEIGHTS[name] for name in names}, seed=seed)
    gathers = {name: make_source(name, **plan) for name in names}
    steps_of = {
        name: gather.planner.plan.steps(0, plan.get("world_size", 1))
        for name, gather in gathers.items()
    }
    steps = MixSteps(choices, stop)
    n_steps = steps.n_steps(epoch, 0, list(steps_of.values()))
    passes = {name: batches_of(gather, epoch) for name, gather in gathers.items()}
    left = dict(steps_of)
    found = []
    for step in range(n_steps):
        among = None
        if stop == "all":
            among = [number for number, name in enumerate(names) if left[name]]
        name = names[choices.at(epoch, step, among)]
        found.append((name, next(passes[name])))
        left[name] -= 1
    for gather in gathers.values():
        gather.source.source.shutdown()
    return found


def batches_of(gather, epoch):
    """Samples of the batches of a source, pass after pass."""
    while True:
        cursor = gather.planner.start_of(epoch)
        gather.reset(gather.planner.write_cursor(cursor))
        yield from (ids(batch) for batch in gather)
        epoch += PASS_EPOCHS
