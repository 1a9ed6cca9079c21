"""Loaders over small stores of any chunking, against slices of the values that were written."""

import dataclasses
import itertools
import math
from collections import Counter

import numpy as np
import pytest
import zarr
from hypothesis import assume
from hypothesis import strategies as st
from zarr.core.sync import sync

import torchdata_insitu as tdi
from tests.contracts.chains import PLENTY, counted, through_json
from tests.contracts.watchdog import promptly
from tests.contracts.zarr_oracle import check_tensor
from tests.depths import examples
from tests.planning import oracle
from tests.planning.naive_plan import NaivePlan, NaiveSpace
from tests.planning.plan_cases import Views, chunkings, offset_lists, some_splits
from torchdata_insitu.planning.rank_stream import TAILS
from torchdata_insitu.testing import CountingStore

# Minutes in all; what they share with other suites runs in those.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*lanes on .* ranks"),
]

NAMES = ("t", "u", "v")


@dataclasses.dataclass
class Archive:
    """A store that counts, what was written to it, and views on it."""

    store: CountingStore
    written: dict
    views: Views
    missing: dict

    def missing_reads(self, name):
        """Reads of keys of an array that are not there."""
        return sum(self.store.gets[key] for key in self.missing[name])


@dataclasses.dataclass
class Written:
    """One array: its values with the sample axis first, and how it is stored.

    Attributes:
        chunks: as Zarr takes them, a step or a list of sizes for each axis.
        shards: as Zarr takes them, None for one stored chunk a key.
        starts: first samples of the chunks.
    """

    values: np.ndarray
    axis: int
    chunks: tuple
    shards: tuple | None
    starts: list

    @property
    def stored(self):
        """The values in the order of axes in which they are stored."""
        return np.moveaxis(self.values, 0, self.axis)

    @property
    def stored_per_chunk(self):
        counts = [len(edges) - 1 for edges in map(edges_of, self.stored.shape, self.chunks)]
        counts.pop(self.axis)
        return math.prod(counts)

    @property
    def key_edges(self):
        """By axis, where what lies under one key begins, and the length of the axis."""
        return list(map(edges_of, self.stored.shape, self.shards or self.chunks))

    def write(self, store, name, zarr_format, compressors):
        with zarr.config.set({"array.rectilinear_chunks": True}):
            array = zarr.create_array(
                store,
                name=name,
                shape=self.stored.shape,
                chunks=self.chunks,
                shards=self.shards,
                dtype=self.values.dtype,
                compressors=compressors,
                fill_value=0,
                zarr_format=zarr_format,
            )
            array[...] = self.stored

    def clear(self, place):
        """Fill what lies under one key with zeros, as if it were missing."""
        edges = zip(self.key_edges, place, strict=True)
        self.stored[tuple(slice(*axis[n : n + 2]) for axis, n in edges)] = 0


def edges_of(length, chunks):
    if isinstance(chunks, int):
        return [*range(0, length, chunks), length]
    return [0, *itertools.accumulate(chunks)]


@st.composite
def written_arrays(draw, shape, *, dtype, first, zarr_format):
    n_samples, *field = shape
    axis = draw(st.integers(0, len(field)))
    step, starts = draw(chunkings(n_samples))
    chunks = [draw(st.integers(1, n + 1)) for n in field]
    shards = None
    if isinstance(step, list) and zarr_format == 3:
        chunks = [[c, n - c] if c < n else c for c, n in zip(chunks, field, strict=True)]
        chunks.insert(axis, [stop - start for start, stop in itertools.pairwise(step)])
    else:
        if isinstance(step, list):
            step = len(starts)
            starts = list(range(0, n_samples, step))
        chunks.insert(axis, step)
        if zarr_format == 3 and draw(st.booleans()):
            shards = tuple(n * draw(st.integers(1, 4)) for n in chunks)
    values = counted(shape, dtype, first=first)
    return Written(values, axis, tuple(chunks), shards, starts)


@st.composite
def archives(draw):
    n_samples = draw(st.integers(1, 30) | st.integers(50, 90))
    field = draw(st.lists(st.integers(1, 3), max_size=2))
    dtype = draw(st.sampled_from(["float32", "int16", "float64"]))
    zarr_format = draw(st.sampled_from([3, 3, 2]))
    names = NAMES[: draw(st.integers(1, 3))]
    written = {
        name: draw(
            written_arrays(
                (n_samples, *field), dtype=dtype, first=1 + 100 * number, zarr_format=zarr_format
            )
        )
        for number, name in enumerate(names)
    }
    inner = zarr.storage.MemoryStore()
    zarr.create_group(inner, zarr_format=zarr_format)
    compressors = draw(st.sampled_from(["auto", None]))
    missing = {name: [] for name in names}
    for name, array in written.items():
        array.write(inner, name, zarr_format, compressors)
        places = st.tuples(*(st.integers(0, len(edges) - 2) for edges in array.key_edges))
        for place in draw(st.sets(places, max_size=2)):
            parts = map(str, place)
            key = f"{name}/{'.'.join(parts)}" if zarr_format == 2 else "/".join([name, "c", *parts])
            sync(inner.delete(key))
            array.clear(place)
            missing[name].append(key)
    store = CountingStore(inner)
    arrays = tdi.open_arrays(
        store, list(names), sample_axis={n: w.axis for n, w in written.items()}
    )
    store.reset()
    reach = min(n_samples - 1, draw(st.sampled_from([4, 12, n_samples])))
    back = draw(st.integers(0, reach))
    own, views = {}, {}
    for name, array in arrays.items():
        own[name] = draw(offset_lists(back, reach - back))
        views[f"of {name}"] = array.window(*own[name])
    if draw(st.booleans()):
        offset = draw(st.integers(-back, reach - back))
        views["shifted stack"] = tdi.stack(*arrays.values()).shift(offset)
        own = {name: [*offsets, offset] for name, offsets in own.items()}
    described = Views(
        n_samples,
        views,
        [w.starts for w in written.values()],
        [sorted(set(offsets)) for offsets in own.values()],
        list(names),
        [w.stored_per_chunk for w in written.values()],
    )
    return Archive(store, written, described, missing)


@dataclasses.dataclass
class Pass:
    """A loader's options, and the batches it has to hand out, as (position, valid)."""

    archive: Archive
    options: dict
    naive: NaivePlan
    batches: list
    budget: float

    def loader(self, **options):
        archive = self.archive
        return tdi.build_loader(
            archive.store, archive.views.views, on_missing="fill", **self.options, **options
        )

    def check(self, batch, rows):
        """Compare one batch with slices of what was written."""
        anchors = [self.naive.draws[position] for position, _ in rows]
        assert batch["sample_index"].tolist() == anchors
        if self.options["tail"] in {"pad", "exact"}:
            assert batch["valid"].tolist() == [valid for _, valid in rows]
        for name, view in self.archive.views.views.items():
            parts = []
            for array in view.arrays:
                values = self.archive.written[array.name].values
                windows = [values[[anchor + o for anchor in anchors]] for o in view.offsets]
                parts.append(np.stack(windows, axis=1) if view.windowed else windows[0])
            expected = np.stack(parts, axis=-1 - len(parts[0].shape[1 + view.windowed :]))
            check_tensor(batch[name], expected if view.stacked else parts[0])


@st.composite
def passes(draw):
    archive = draw(archives())
    views = archive.views
    split, ranges = draw(some_splits(views))
    space = NaiveSpace(views.length, views.starts, views.offsets, ranges)
    assume(space.anchors)
    order = {
        "seed": draw(st.integers(0, 3)),
        "shuffle": draw(st.booleans()),
        "block_chunks": draw(st.integers(1, 6)),
        "run_chunks": draw(st.integers(1, 3)),
        "lanes": draw(st.integers(1, 3)),
    }
    world_size = draw(st.integers(1, 3))
    options = {
        **order,
        "split": split,
        "batch_size": draw(st.sampled_from([1, 3, 4, 8, 40])),
        "tail": draw(st.sampled_from(TAILS)),
        "world_size": world_size,
        "rank": draw(st.integers(0, world_size - 1)),
        "prefetch_factor": draw(st.integers(0, 2)),
    }
    naive = NaivePlan(space, epoch=0, **order)
    batches, _ = oracle.batches(
        len(naive.draws),
        0,
        batch=options["batch_size"],
        world=world_size,
        rank=options["rank"],
        tail=options["tail"],
    )
    assume(batches)
    budget = draw(st.sampled_from([1.0, 1.0, 1.3, 2.0, 100.0]))
    return Pass(archive, options, naive, batches, budget)


def least_reads(plan, cursor, ranks, sizes, budget):
    """Chunks by array that cannot come from memory, whichever a pool of this budget keeps.

    One that was released may be found again, unless all of the budget was leased to others in
    between.
    """
    least, held, released, full = Counter(), Counter(), {}, []
    for number, segment in enumerate(plan.segments(cursor, *ranks)):
        for key in segment.admit:
            since = released.pop(key, None)
            least[key.source] += since is None or any(place > since for place in full)
            held[key.source] += 1
        if sum(n * sizes[source] for source, n in held.items()) >= budget:
            full.append(number)
        for key in segment.release:
            released[key] = number
            held[key.source] -= 1
    return least


@examples(30, passes())
def test_batches_are_slices_and_reads_are_planned(case):
    archive, options = case.archive, case.options
    with case.loader(budget_bytes=PLENTY) as loader:
        floor = loader.floor_bytes
    budget = int(case.budget * floor)
    with case.loader(budget_bytes=budget) as loader, promptly(60):
        planned = loader.plan.reads(
            options["rank"], world_size=options["world_size"], lanes=options["lanes"]
        )
        sizes = {n: array.chunk_bytes for n, array in enumerate(loader.chain.planner.arrays)}
        ranks = options["rank"], options["world_size"]
        least = least_reads(loader.plan, loader.cursor, ranks, sizes, budget)
        assert loader.expected_reads == sum(planned.values())
        assert not archive.store.gets
        assert len(loader) == len(case.batches)
        n_batches = 0
        for batch, rows in zip(loader, case.batches, strict=True):
            case.check(batch, rows)
            n_batches += 1
        stats = loader.stats()
    assert n_batches == len(case.batches)
    for number, name in enumerate(archive.views.names):
        reads = stats.reads.get(name, 0)
        assert least[number] * archive.views.stored[number] <= reads <= planned[name]
        # Stored chunks in shards come with others in one request, or need one for the index.
        if archive.written[name].shards is None:
            assert reads == archive.store.reads(f"{name}/")
            assert stats.missing.get(name, 0) == archive.missing_reads(name)


@examples(20, passes(), st.data())
def test_a_resumed_loader_hands_out_the_rest_and_reads_what_it_needs(case, data):
    archive, options = case.archive, case.options
    n_done = data.draw(st.integers(0, len(case.batches)))
    with case.loader(budget_bytes=PLENTY) as loader, promptly(60):
        for batch, rows in zip(itertools.islice(loader, n_done), case.batches, strict=False):
            case.check(batch, rows)
        state = through_json(loader.state_dict())
    archive.store.reset()
    with case.loader(budget_bytes=PLENTY) as loader, promptly(60):
        loader.load_state_dict(state)
        if n_done == len(case.batches):
            assert (loader.epoch, loader.position) == (1, 0)
            return
        planned = loader.plan.reads(
            options["rank"],
            world_size=options["world_size"],
            lanes=options["lanes"],
            position=loader.position,
        )
        assert loader.expected_reads == sum(planned.values())
        assert len(loader) == len(case.batches)
        for batch, rows in zip(loader, case.batches[n_done:], strict=True):
            case.check(batch, rows)
        stats = loader.stats()
    for name, most in planned.items():
        assert stats.reads.get(name, 0) <= most
        if archive.written[name].shards is None:
            assert stats.reads.get(name, 0) == archive.store.reads(f"{name}/")
