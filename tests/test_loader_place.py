"""Where a loader stands, whatever is asked and told before its next batch."""

import copy

import pytest

from tests.small_loaders import N, all_ids, flat, make_loader, take

EARLY = {
    "nothing": id,
    "epoch": lambda loader: loader.epoch,
    "len": len,
    "state_dict": lambda loader: loader.state_dict(),
    "set_epoch": lambda loader: loader.set_epoch(0),
}


@pytest.mark.filterwarnings("ignore:the number of batches was asked before")
@pytest.mark.filterwarnings("ignore:1 lanes on 2 ranks")
@pytest.mark.parametrize("early", EARLY)
@pytest.mark.parametrize("tail, n_left", [("drop", 4), ("short", 1), ("drop", 5), ("short", 3)])
def test_what_is_asked_before_the_ranks_are_known_changes_nothing(
    early, tail, n_left, environment, monkeypatch
):
    with make_loader(batch_size=1, tail="exact") as loader:
        take(loader, N - n_left)
        state = loader.state_dict()
    found, epochs = [], set()
    for rank in range(2):
        monkeypatch.delenv("RANK", raising=False)
        with make_loader(batch_size=4, tail=tail) as loader:
            loader.load_state_dict(state)
            EARLY[early](loader)
            environment(rank, 2)
            epochs.add(loader.epoch)
            found.append(all_ids(loader))
    assert len(epochs) == 1
    assert len(found[0]) == len(found[1]) > 0
    samples = flat(found[0]) + flat(found[1])
    assert len(set(samples)) == len(samples)


def test_skipping_to_the_end_keeps_the_epoch_that_was_asked_for():
    with make_loader() as loader:
        items = iter(loader)
        next(items)
        loader.set_epoch(5)
        loader.skip(len(loader) - 1)
        iter(loader)
        assert loader.epoch == 5


def test_a_copy_at_the_start_of_an_epoch_obeys_set_epoch_too():
    with make_loader() as loader:
        list(loader)
        other = copy.deepcopy(loader)
        for one in (loader, other):
            one.set_epoch(5)
            take(one, 1)
            assert one.epoch == 5
        other.close()


def test_lanes_that_change_are_told_once(caplog):
    with make_loader(rank=0, world_size=3, batch_size=2) as loader:
        state = loader.state_dict()
    caplog.set_level("INFO")
    with make_loader(rank=0, world_size=2, batch_size=2) as loader:
        loader.load_state_dict(state)
        loader.skip(len(loader))
        for _ in range(3):
            loader.state_dict()
    assert len([record for record in caplog.records if "lanes change" in record.message]) == 1
