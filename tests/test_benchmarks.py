"""The parts of the benchmarks that could be wrong without anyone seeing it; nothing is timed."""

import itertools
from contextlib import closing

import numpy as np
import pytest
from zarr.codecs import BloscCodec, ZstdCodec

from benchmarks import one_epoch
from benchmarks.bench_table import first_batch_table, ratio_table, speed_table
from benchmarks.engines import ENGINES, engine_class
from benchmarks.engines.ceiling import Ceiling
from benchmarks.engines.engine import Engine, Task
from benchmarks.layouts import LAYOUTS, Layout, write_store
from benchmarks.oracle import EpochCheck, Piece, WrongEpochError, stored_values
from benchmarks.ratios import Figure, Spread, geometric_mean, pair_ratios, worst
from benchmarks.slow_stores import slow_files

SMALL = {
    "tiles": Layout((37, 7, 5), (5, 3, 4), ZstdCodec(level=3)),
    "shards": Layout((24, 4, 3), (1, 4, 3), ZstdCodec(level=3), shards=(8, 4, 3)),
    "shards of tiles": Layout((24, 6, 6), (2, 3, 3), BloscCodec(cname="lz4"), shards=(8, 6, 6)),
    "plain": Layout((20, 4, 3), (6, 4, 3), None),
    "window": Layout((30, 4, 3), (4, 4, 3), BloscCodec(cname="lz4"), offsets=(-1, 0, 4)),
}
# What starts processes, or threads that stay, is checked in each run of the benchmark only.
IN_THIS_PROCESS = sorted(set(ENGINES) - {"dataloader-2", "insitubatch"})


def small_task(name, folder):
    return Task(write_store(SMALL[name], folder / "small.zarr"), SMALL[name].offsets, batch_size=8)


def epoch_check(engine):
    return EpochCheck(stored_values(engine.task.path), *engine.expected())


@pytest.mark.parametrize("layout", SMALL)
@pytest.mark.parametrize("name", IN_THIS_PROCESS)
def test_engines_deliver_every_sample_once(name, layout, tmp_path):
    with closing(engine_class(name)(small_task(layout, tmp_path))) as engine:
        check = epoch_check(engine)
        n_draws = sum(engine.epoch(check.see))
        check.finish()
        assert n_draws == len(engine.expected()[0])


def test_warm_epochs_read_nothing_and_cold_ones_every_stored_chunk(tmp_path):
    task = small_task("tiles", tmp_path)
    reads = {}
    for name in ("ours", "ours-obstore", "ours-warm", "ceiling", "into"):
        with closing(engine_class(name)(task)) as engine:
            assert sum(engine.epoch()) == 37
            reads[name] = engine.reads
    assert reads == {
        **dict.fromkeys(("ours", "ours-obstore", "ceiling", "into"), 2 * 8 * 3 * 2),
        "ours-warm": 0,
    }


def test_an_engine_with_a_wrong_value_is_found(tmp_path, monkeypatch):
    right = Ceiling.decode

    def wrong(self, of, payload):
        values = right(self, of, payload).copy()
        values[0, 0, 0] += 1
        return values

    monkeypatch.setattr(Ceiling, "decode", wrong)
    monkeypatch.setattr(one_epoch, "task_of", small_task)
    with pytest.raises(WrongEpochError, match="array 'a' at offset 0"):
        one_epoch.check_layout(["ours", "ceiling"], "shards", tmp_path)


STORED = {"a": np.arange(24.0).reshape(6, 2, 2)}
WHOLE = (slice(0, 2), slice(0, 2))


def seen(*pieces, anchors=range(6), offsets=(0,)):
    check = EpochCheck(STORED, anchors, offsets)
    for rows, offset, field in pieces:
        at = np.array(rows)
        check.see(Piece("a", at, offset, field, STORED["a"][(at + offset, *field)]))
    return check


def test_oracle_takes_what_is_right():
    seen(([5, 0, 2], 0, WHOLE), ([1, 3, 4], 0, WHOLE)).finish()
    seen(([0, 1, 2], 0, WHOLE), ([0, 2, 1], 3, WHOLE), anchors=range(3), offsets=(0, 3)).finish()
    left, right = (WHOLE[0], slice(0, 1)), (WHOLE[0], slice(1, 2))
    seen((range(6), 0, left), (range(6), 0, right)).finish()
    seen(([5, 0], 0, WHOLE)).finish(is_cut=True)


@pytest.mark.parametrize(
    "pieces, is_cut, text",
    [
        ([(range(5), 0, WHOLE)], False, "anchor 5 came 0 times instead of 1"),
        ([(range(6), 0, WHOLE), ([2], 0, WHOLE)], False, "anchor 2 came 2 times"),
        ([([2], 0, WHOLE), ([2], 0, WHOLE)], True, "anchor 2 came 2 times"),
        ([([2, 2], 0, WHOLE)], True, "anchor 2 came 2 times"),
        ([(range(6), 0, (slice(0, 1), slice(0, 2)))], False, "2 of 4 values of the field"),
        ([], False, "0 of 4 values of the field"),
    ],
)
def test_oracle_refuses_samples_that_lack_or_come_twice(pieces, is_cut, text):
    with pytest.raises(WrongEpochError, match=text):
        seen(*pieces).finish(is_cut=is_cut)


def test_oracle_refuses_an_offset_that_lacks_and_an_anchor_that_is_none():
    with pytest.raises(WrongEpochError, match="at offset 3: 0 of 4"):
        seen(([0, 1, 2], 0, WHOLE), anchors=range(3), offsets=(0, 3)).finish()
    with pytest.raises(WrongEpochError, match="anchor 3 came 1 times instead of 0"):
        seen((range(4), 0, WHOLE), anchors=range(3)).finish()


@pytest.mark.parametrize(
    "values",
    [
        STORED["a"][[1, 0]],
        STORED["a"][[0, 1]].astype("float32"),
        STORED["a"][[0, 1]] + 1e-9,
        STORED["a"][[0]],
    ],
)
def test_oracle_refuses_other_values(values):
    with pytest.raises(WrongEpochError, match="differ from"):
        EpochCheck(STORED, range(6), (0,)).see(Piece("a", np.array([0, 1]), 0, WHOLE, values))


def repeat_of(**seconds):
    return {
        name.replace("_", "-"): {
            "epoch_s": value,
            "first_batch_s": value / 10,
            "set_up_s": 0.002,
            "share": 0.5 if name.startswith("dataloader") else 1.0,
            "delivered_bytes": 2_000_000_000,
        }
        for name, value in seconds.items()
    }


def test_ratios_are_of_pairs_and_above_one_for_the_faster():
    repeats = [
        repeat_of(ours=1.0, ceiling=2.0),
        repeat_of(ours=4.0, ceiling=2.0),
        repeat_of(ours=9),
    ]
    figure = Figure("", "ours", ("ceiling",))
    assert pair_ratios(figure, repeats) == [2.0, 0.5]
    assert Spread.of([2.0, 0.5, 1.0]) == Spread(1.0, 0.5, 2.0)
    best = Figure("", "ours", ("dataloader-0", "dataloader-2"))
    assert pair_ratios(best, [repeat_of(ours=1.0, dataloader_0=6.0, dataloader_2=5.0)]) == [5.0]
    assert pair_ratios(best, [repeat_of(ours=1.0, dataloader_0=6.0)]) == [6.0]
    nothing = {"ours": {"first_batch_s": None}, "ceiling": {"first_batch_s": 1.0}}
    assert pair_ratios(Figure("", "ours", ("ceiling",), "first_batch_s"), [nothing]) == []


def test_means_are_geometric_and_the_worst_is_the_slowest():
    assert geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2.0)
    assert worst({"c1": Spread(1.0, 0.1, 2), "c8": Spread(0.9, 0.8, 3)}) == "c8"


def test_tables_show_medians_means_and_what_is_missing():
    results = {
        "c8": [repeat_of(ours=1.0, ceiling=2.0, dataloader_0=8.0)] * 3,
        "wb2": [repeat_of(ours=1.0, ceiling=0.5)],
    }
    lines = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows(ratio_table(results))]
    assert lines[0] == ["layout", "ours / ceiling", "ours / best DataLoader"]
    assert lines[2:] == [
        ["c8", "2.00 (2.00-2.00)", "8.00 (8.00-8.00)"],
        ["wb2", "0.50 (0.50-0.50)", "-"],
        ["**geometric mean**", "**1.00**", "**8.00**"],
        ["**worst**", "**0.50 (wb2)**", "**8.00 (c8)**"],
    ]
    engines = ["ours", "dataloader-0"]
    assert rows(speed_table(results, engines))[2:] == [
        "| c8   | 2.00 | ~0.25        |",
        "| wb2  | 2.00 | -            |",
    ]
    assert "2 + 800" in rows(first_batch_table(results, engines))[2]


def rows(table):
    return table.splitlines()


def test_what_follows_a_cut_goes_on_at_the_rate_behind_the_first_batch():
    whole_epoch_s = one_epoch.whole_epoch_s
    assert whole_epoch_s(2.0, 7.0, n_first=10, n_draws=100, n_all=100) == 7.0
    assert whole_epoch_s(2.0, 3.0, n_first=10, n_draws=20, n_all=100) == 11.0


class FakeEngine(Engine):
    """Delivers batches of eight draws, or too few of them."""

    n_batches = 4

    def epoch(self, see=None):
        del see
        yield from [8] * self.n_batches

    def expected(self):
        return range(32), (0,)

    def close(self):
        pass


def test_only_epochs_that_may_be_judged_by_a_part_are_cut(tmp_path):
    task = small_task("plain", tmp_path)
    assert one_epoch.time_epoch(FakeEngine, task, max_seconds=0).share == 1
    steady = type("Steady", (FakeEngine,), {"is_steady": True})
    assert one_epoch.time_epoch(steady, task, max_seconds=0).share == 0.5


@pytest.mark.parametrize("n_batches", [3, 5])
@pytest.mark.parametrize("is_steady", [True, False])
def test_epochs_with_too_few_or_too_many_draws_are_not_timed(n_batches, is_steady, tmp_path):
    wrong = type("Wrong", (FakeEngine,), {"n_batches": n_batches, "is_steady": is_steady})
    with pytest.raises(RuntimeError, match=f"{8 * n_batches} of 32 draws came: Wrong is wrong"):
        one_epoch.time_epoch(wrong, small_task("plain", tmp_path), max_seconds=10)


@pytest.mark.parametrize("name", ["ours", "dataloader-0"])
def test_an_epoch_that_ends_early_is_not_taken_for_one_that_was_cut(name, tmp_path, monkeypatch):
    kind = engine_class(name)
    epoch = kind.epoch
    monkeypatch.setattr(one_epoch, "task_of", small_task)
    monkeypatch.setattr(kind, "epoch", lambda *given: itertools.islice(epoch(*given), 2))
    with pytest.raises(WrongEpochError, match="came 0 times instead of 1"):
        one_epoch.check_layout([name], "plain", tmp_path)


def test_delivered_bytes_count_what_batches_hold(tmp_path):
    task = small_task("window", tmp_path)
    assert task.anchors() == range(1, 26)
    assert task.delivered_bytes() == 25 * 3 * 2 * 4 * 3 * 4


def test_slow_files_are_slow_or_an_error(tmp_path):
    task = small_task("plain", tmp_path)
    with closing(engine_class("ours")(task)) as engine, slow_files(0.0):
        assert sum(engine.epoch()) == 20
    with pytest.raises(RuntimeError, match="no read of a file was slow"), slow_files(0.0):
        pass


def test_layouts_that_share_a_store_are_alike():
    for layout in LAYOUTS.values():
        if layout.store is not None:
            other = LAYOUTS[layout.store]
            assert (layout.shape, layout.chunks, layout.shards, layout.codec) == (
                *(other.shape, other.chunks, other.shards, other.codec),
            )
