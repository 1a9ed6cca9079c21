import dataclasses

import numpy as np
import pytest

import torchdata_insitu as tdi
from tests.small_loaders import PLENTY, N, all_ids, flat, make_loader, small_store, views_of
from torchdata_insitu.errors import PlanError
from torchdata_insitu.testing import check_resume


def loader_over(node_of_planner, **options):
    """A loader whose planner has a segment node on it."""
    store = small_store()
    pool = tdi.ChunkPool(PLENTY)
    planner = tdi.ChunkPlanner(views_of(store), batch_size=4, block_chunks=2, **options)
    fetcher = tdi.AsyncChunkFetcher(node_of_planner(planner), store, pool)
    return tdi.InSituLoader(tdi.Prefetcher(tdi.GatherNode(tdi.ChunkPoolNode(fetcher, pool))))


class Ledger(tdi.SegmentNode):
    def __init__(self, source):
        super().__init__(source)
        self.seen = []

    def map(self, segment):
        self.seen.extend(segment.draws[:, 0].tolist())
        return dataclasses.replace(segment, draws=segment.draws.copy())


def test_map_sees_every_segment_and_changes_no_batch():
    with make_loader() as plain:
        expected = all_ids(plain)
    with loader_over(Ledger) as loader:
        assert all_ids(loader) == expected
        ledger = loader.chain.fetcher.source
    assert ledger.seen == flat(expected)
    assert len(ledger.seen) == N


def test_a_chain_with_one_resumes_exactly():
    assert check_resume(lambda: loader_over(lambda planner: Ledger(Ledger(planner)))) == 7


class Reverses(tdi.SegmentNode):
    def map(self, segment):
        return dataclasses.replace(segment, draws=segment.draws[::-1].copy())


class Drops(tdi.SegmentNode):
    def map(self, segment):
        return dataclasses.replace(segment, draws=segment.draws[1:])


class WritesInPlace(tdi.SegmentNode):
    def map(self, segment):
        segment.draws[:] = np.sort(segment.draws, axis=0)[::-1]
        return segment


class ReturnsNothing(tdi.SegmentNode):
    def map(self, segment):
        pass


@pytest.mark.parametrize(
    "kind, said",
    [
        (Reverses, "Reverses.map returned 4 other draws for a segment of 4 draws at position 0"),
        (Drops, "Drops.map returned 3 other draws for a segment of 4 draws"),
        (WritesInPlace, "WritesInPlace.map returned 4 other draws"),
        (ReturnsNothing, "ReturnsNothing.map returned a NoneType"),
    ],
)
def test_other_draws_are_refused(kind, said):
    with (
        loader_over(kind, shuffle=False) as loader,
        pytest.raises(PlanError, match=said + ".*same draws in the same order"),
    ):
        list(loader)
