"""Chains cut off after any of their nodes, and what their items say."""

import contextlib
import json
import threading

import numpy as np

import torchdata_insitu as tdi
from torchdata_insitu.nodes.graph import walk
from torchdata_insitu.nodes.segment_node import FetchedSegment, ResidentSegment

# In the order of the chain; "loader" is the node that `build_loader` ends with.
NODES = (
    "planner",
    "segment_node",
    "fetcher",
    "pool_node",
    "gather",
    "prefetcher",
    "pin_memory",
    "loader",
    *(f"mix, {stop}" for stop in ("first", "all", "cycle")),
    "mix of prefetchers",
)
PLENTY = 10**7


class KeepsAll(tdi.SegmentNode):
    """A segment node of a user's own."""

    def map(self, segment):
        return segment


class Chains:
    """Makes fresh chains over one plan, and ends them all."""

    def __init__(self, store, views, **plan):
        self.store = store
        self.views = views
        self.plan = plan
        self._offsets = tdi.ChunkPlanner(views, **plan).space.offsets
        self._made = []

    def make(self, last):
        """A fresh chain that ends with the node of that name."""
        if last.startswith("mix"):
            node = self._mix(last)
        elif last == "loader":
            node = tdi.build_loader(self.store, self.views, budget_bytes=PLENTY, **self.plan).node
        else:
            node = self._cut_after(last)
        self._made.append(node)
        return node

    def _mix(self, name):
        """Two chains over the plan, of which the second has another seed."""
        last = "gather" if name.startswith("mix,") else "pin_memory"
        seed = self.plan.get("seed", 0)
        sources = {
            source: self._cut_after(last, seed=seed + number) for number, source in enumerate("ab")
        }
        stop = name.removeprefix("mix, ") if last == "gather" else "all"
        return tdi.MixNode(sources, {"a": 2, "b": 1}, seed=seed, stop=stop)

    def _cut_after(self, last, **plan):
        pool = tdi.ChunkPool(PLENTY)
        node = tdi.ChunkPlanner(self.views, **{**self.plan, **plan})
        further = {
            "segment_node": KeepsAll,
            "fetcher": lambda source: tdi.AsyncChunkFetcher(source, self.store, pool),
            "pool_node": lambda source: tdi.ChunkPoolNode(source, pool),
            "gather": tdi.GatherNode,
            "prefetcher": tdi.Prefetcher,
            "pin_memory": tdi.PinMemory,
        }
        for name in NODES[1 : NODES.index(last) + 1]:
            node = further[name](node)
        return node

    def seen(self, item):
        """What an item says, as values that compare; what it leases is given back."""
        if isinstance(item, dict):
            return {
                name: (tensor.dtype, tuple(tensor.shape), tensor.numpy().tobytes())
                for name, tensor in item.items()
            }
        if isinstance(item, ResidentSegment):
            anchors = item.segment.draws[:, 0]
            values = [
                item.regions[number][item.lookups[number].rows(anchors + offset)].tobytes()
                for number, offsets in enumerate(self._offsets)
                for offset in offsets
            ]
            item.release()
            return segment_seen(item.segment), values
        if isinstance(item, FetchedSegment):
            item.admission.wait()
            return segment_seen(item.segment), item.is_last
        return segment_seen(item)

    def rest(self, items):
        """What is left."""
        return [self.seen(item) for item in items]

    def close(self):
        for root in self._made:
            for node in walk(root):
                if hasattr(node, "shutdown"):
                    node.shutdown()


def segment_seen(segment):
    # Chunks are left out: a pass that begins in the middle holds none of those before.
    cuts = [(cut.stop, cut.position) for cut in segment.cuts]
    return segment.cursor, segment.after, segment.draws.tolist(), segment.valid.tolist(), cuts


@contextlib.contextmanager
def chains(store, views, **plan):
    """Chains that are shut down at the end."""
    made = Chains(store, views, **plan)
    try:
        yield made
    finally:
        made.close()


def through_json(state):
    """The state as a text file gives it back."""
    return json.loads(json.dumps(state))


def counted(shape, dtype="float32", first=1):
    """Values that say where they belong, and none of them the fill value."""
    return (first + np.arange(np.prod(shape))).astype(dtype).reshape(shape)


def floor_of(store, views, **options):
    """Bytes of the floor, and the terms as a message writes them."""
    with tdi.build_loader(store, views, **options) as loader:
        terms = loader.chain.planner.floor_terms(loader.cursor.lanes)
        return loader.floor_bytes, [f"{name} {n} x {size} B" for name, n, size in terms]


def our_threads():
    """Threads of loaders that run now, but for those that only end something."""
    names = [(thread, thread.name) for thread in threading.enumerate()]
    return [
        thread
        for thread, name in names
        if name.startswith("insitu-") and not name.startswith("insitu-end")
    ]
