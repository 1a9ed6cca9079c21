"""A training that is resumed has the batches and epochs of one that was not interrupted."""

import itertools

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader

import torchdata_insitu as tdi
from tests.lightning_.trainings import (
    N_BATCHES,
    QUIET,
    Ledger,
    Saves,
    make_data,
    make_trainer,
    small_store,
    train,
)
from torchdata_insitu.errors import StateError
from torchdata_insitu.lightning_ import fit_counters

pytestmark = QUIET

HOOKS = ("on_train_batch_end", "on_train_epoch_end", "on_validation_end")
ALL_HOOKS = (
    *("on_train_batch_start", "on_train_epoch_start", "on_validation_start", "on_train_end"),
    *HOOKS,
)
IN_STEPS = {"max_steps": 3 * N_BATCHES, "max_epochs": -1}
CONFIGURATIONS = {
    "base": {},
    "no_sanity_check": {"num_sanity_val_steps": 0},
    "limit": {"limit_train_batches": 4},
    "accumulate": {"accumulate_grad_batches": 3},
    "validate_twice": {"val_check_interval": 0.5},
    "reload": {"reload_dataloaders_every_n_epochs": 1},
    "max_steps": IN_STEPS,
    "max_steps_in_mid_epoch": {**IN_STEPS, "max_steps": 8},
    "max_steps_and_limit": {**IN_STEPS, "max_steps": 12, "limit_train_batches": 4},
    "one_cycle": {"one_cycle": True},
    "one_cycle_in_steps": {**IN_STEPS, "one_cycle": True},
    "combined": {"combined": True},
    "combined_one_cycle": {"combined": True, "one_cycle": True},
}


def fit(folder, configuration, *, ckpt_path=None, callbacks=(), **changes):
    """Train as a configuration says, in a trainer of its own; gives the ledger."""
    options = {**CONFIGURATIONS[configuration], **changes}
    module = Ledger(one_cycle=options.pop("one_cycle", False))
    if not options.pop("combined", False):
        train(folder, module=module, ckpt_path=ckpt_path, callbacks=callbacks, **options)
        return module.entries
    stores = small_store(), small_store()
    views = [{"x": tdi.open_arrays(store)["t2m"]} for store in stores]
    loaders = [
        tdi.build_loader(store, view, batch_size=size, seed=size, budget_bytes=10**7)
        for store, view, size in zip(stores, views, (4, 6), strict=True)
    ]
    trainer = make_trainer(folder, [tdi.InSituResume(), *callbacks], **options)
    trainer.fit(module, CombinedLoader(loaders, "min_size"), ckpt_path=ckpt_path)
    return module.entries


def whole(folder, configuration):
    """The training that is not interrupted, for as long as those that are resumed."""
    is_cut = configuration == "max_steps_in_mid_epoch"
    return fit(folder, configuration, **(IN_STEPS if is_cut else {}))


def resume(folder, configuration, ckpt_path, callbacks=()):
    changes = IN_STEPS if configuration == "max_steps_in_mid_epoch" else {}
    return fit(folder, configuration, ckpt_path=ckpt_path, callbacks=callbacks, **changes)


@pytest.mark.parametrize("configuration", ["max_steps_in_mid_epoch", "limit", "validate_twice"])
def test_a_training_goes_on_where_its_checkpoint_was_saved(configuration, tmp_path):
    """At a step in mid-epoch, after the last one, at the end of an epoch, and in a validation."""
    saves = Saves(tmp_path, ALL_HOOKS)
    fit(tmp_path, configuration, callbacks=[saves])
    entries = whole(tmp_path, configuration)
    if configuration == "max_steps_in_mid_epoch":
        chosen = [saves.saved[-1], saves.saved[-2], saves.saved[5], saves.saved[14]]
    else:
        n_in_epoch = len(saves.saved) // 3
        chosen = saves.saved[n_in_epoch - 4 : n_in_epoch]
    for path, n_before in chosen:
        assert entries[:n_before] + resume(tmp_path, configuration, path) == entries, path.stem


@pytest.mark.slow
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_lightning_every_checkpoint_single_and_double_resume(configuration, tmp_path):
    again = tmp_path / "again"
    again.mkdir()
    hooks = ALL_HOOKS if configuration in {"base", "max_steps_in_mid_epoch"} else HOOKS
    saves = Saves(tmp_path, hooks)
    fit(tmp_path, configuration, callbacks=[saves])
    entries = whole(tmp_path, configuration)
    assert len(saves.saved) > 8
    for number, (path, n_before) in enumerate(saves.saved):
        more = Saves(again, hooks)
        resumed = resume(tmp_path, configuration, path, [more])
        assert entries[:n_before] + resumed == entries, path.stem
        # Another distance each time, from the very next checkpoint to one of a later epoch.
        for path_2, n_2 in itertools.islice(more.saved, (7 * number) % 10, None):
            resumed = resume(tmp_path, configuration, path_2)
            assert entries[: n_before + n_2] + resumed == entries, (path.stem, path_2.stem)
            break


@pytest.mark.parametrize("fails_at", [0, 4, N_BATCHES - 1, N_BATCHES])
def test_lightning_exception_checkpoint_retrains_batch_in_flight(fails_at, tmp_path):
    entries = train(tmp_path, max_epochs=2).entries
    saves = Saves(tmp_path, ["on_exception"])
    failed = Ledger(fails_at=fails_at)
    with pytest.raises(ArithmeticError):
        train(tmp_path, module=failed, callbacks=[saves])
    more = Saves(tmp_path, ["on_train_batch_end"])
    ((path, n_before),) = saves.saved
    assert n_before == len(failed.entries)
    resumed = train(tmp_path, max_epochs=2, ckpt_path=path, callbacks=[more]).entries
    assert failed.entries + resumed == entries
    # Lightning still counts the batch that failed, so that what it saves next is misread.
    path, n_more = more.saved[0]
    twice = train(tmp_path, max_epochs=2, ckpt_path=path).entries
    assert failed.entries + resumed[:n_more] + twice == entries


def test_a_loader_of_ones_own_goes_on_too(tmp_path):
    saves = Saves(tmp_path, HOOKS)
    entries = fit(tmp_path, "combined", callbacks=[saves], max_epochs=2)
    path, n_before = saves.saved[2]
    resumed = fit(tmp_path, "combined", ckpt_path=path, max_epochs=2)
    assert entries[:n_before] + resumed == entries


def test_a_training_goes_on_although_its_length_was_asked_for_early(tmp_path):
    """Lightning then loads no state into loaders, and that of the data module is enough."""
    saves = Saves(tmp_path, HOOKS)
    entries = fit(tmp_path, "one_cycle", callbacks=[saves])
    path, n_before = saves.saved[N_BATCHES + 4]
    assert entries[:n_before] + resume(tmp_path, "one_cycle", path) == entries


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning")
def test_the_last_checkpoint_is_found_by_its_name(tmp_path):
    entries = train(tmp_path).entries
    options = {"enable_checkpointing": True}

    def saves():
        return ModelCheckpoint(tmp_path / "kept", every_n_train_steps=2, save_last=True)

    before = train(tmp_path, callbacks=[saves()], max_epochs=1, limit_train_batches=4, **options)
    resumed = train(tmp_path, callbacks=[saves()], ckpt_path="last", **options).entries
    assert before.entries + resumed == entries[:5] + entries[7:]


class Stops(Callback):
    """Ends a training after some steps, as `max_time` does."""

    def __init__(self, after):
        self._after = after

    def on_train_batch_end(self, trainer, *others):  # noqa: ARG002 - Lightning's signature
        if trainer.global_step == self._after:
            trainer.should_stop = True


@pytest.mark.parametrize(
    "after, options",
    [
        (3, {}),
        (8, {}),
        (N_BATCHES, {}),
        (8, {"val_check_interval": 0.5}),
        (6, {"limit_train_batches": 4}),
        (2 * N_BATCHES + 3, {}),
        (N_BATCHES + 2, {"max_epochs": 2}),
    ],
)
def test_an_epoch_that_was_ended_early_goes_on(after, options, tmp_path):
    entries = train(tmp_path, **options).entries
    saves = Saves(tmp_path, ["on_train_epoch_end", "on_train_end"])
    cut = train(tmp_path, callbacks=[Stops(after), saves], **options).entries
    assert cut == entries[: len(cut)]
    for path, n_before in saves.saved[-2:]:
        more = Saves(tmp_path, ["on_train_batch_end"])
        resumed = train(tmp_path, ckpt_path=path, callbacks=[more], **options).entries
        assert cut[:n_before] + resumed == entries, path.stem
        path_2, n_more = more.saved[1]
        twice = train(tmp_path, ckpt_path=path_2, **options).entries
        assert cut[:n_before] + resumed[:n_more] + twice == entries, path_2.stem


def test_an_epoch_over_loaders_of_ones_own_goes_on_that_was_ended_early(tmp_path):
    saves = Saves(tmp_path, ["on_train_end"])
    entries = fit(tmp_path, "combined", max_epochs=2)
    cut = fit(tmp_path, "combined", callbacks=[Stops(2), saves], max_epochs=2)
    ((path, _),) = saves.saved
    assert cut + fit(tmp_path, "combined", ckpt_path=path, max_epochs=2) == entries


@pytest.mark.parametrize("epoch, step", [(0, 2), (1, 0), (1, 3)])
def test_a_state_that_is_given_by_hand_is_where_the_trainer_begins(epoch, step, tmp_path):
    saves = Saves(tmp_path, ["on_train_batch_end"])
    entries = train(tmp_path, callbacks=[saves]).entries
    n_before = epoch * (N_BATCHES + 1) + (step + 1 if step else 0)
    number = epoch * N_BATCHES + step - 1
    checkpoint = torch.load(saves.saved[number][0], weights_only=True)
    data = make_data()
    data.load_state_dict(checkpoint["InSituDataModule"])
    more = Saves(tmp_path, ["on_train_batch_end"])
    begun = train(tmp_path, data=data, callbacks=[more]).entries
    assert entries[:n_before] + begun == entries
    path, n_more = more.saved[0]
    resumed = train(tmp_path, ckpt_path=path).entries
    assert entries[:n_before] + begun[:n_more] + resumed == entries


def test_without_strict_the_epoch_in_progress_begins_anew(tmp_path):
    path, _ = mid_epoch(tmp_path)
    options = {"seed": 1, "loader_options": {"strict": False}}
    entries = train(tmp_path, data_options=options).entries
    with pytest.warns(UserWarning, match="starting epoch 0 anew"):
        resumed = train(tmp_path, ckpt_path=path, data_options=options).entries
    assert [sorted(epoch) for epoch in epochs_of(["epoch 0", *resumed])] == [list(range(24))] * 3
    assert resumed == entries[1:]


# What a resume may not change


def mid_epoch(folder, **options):
    saves = Saves(folder, ["on_train_batch_end"])
    entries = train(folder, callbacks=[saves], max_epochs=1, **options).entries
    path, n_before = saves.saved[2]
    return path, entries[:n_before]


def test_another_global_batch_size_needs_loaders_that_are_asked_for_anew(tmp_path):
    path, before = mid_epoch(tmp_path)
    with pytest.raises(StateError, match=r"this epoch has 5 batches and each later one 4.*reload_"):
        train(tmp_path, ckpt_path=path, data_options={"batch_size": 6})
    # The epoch in progress is the last one: nobody is left to be misled.
    with pytest.raises(StateError, match="reload_dataloaders_every_n_epochs=1"):
        train(
            tmp_path,
            ckpt_path=path,
            data_options={"batch_size": 6},
            reload_dataloaders_every_n_epochs=2,
        )
    last = train(tmp_path, ckpt_path=path, data_options={"batch_size": 6}, max_epochs=1)
    resumed = train(
        tmp_path,
        ckpt_path=path,
        data_options={"batch_size": 6},
        reload_dataloaders_every_n_epochs=1,
    )
    epochs = epochs_of(before + resumed.entries)
    assert [sorted(epoch) for epoch in epochs] == [list(range(24))] * 3
    assert epochs_of(before + last.entries) == epochs[:1]


def test_another_batch_size_is_no_matter_between_two_epochs(tmp_path):
    saves = Saves(tmp_path, ["on_train_epoch_end"])
    before = train(tmp_path, callbacks=[saves], max_epochs=1).entries
    for options in ({}, {"max_steps": N_BATCHES + 4, "max_epochs": -1}):
        resumed = train(
            tmp_path, ckpt_path=saves.saved[0][0], data_options={"batch_size": 12}, **options
        )
        epochs = epochs_of(before + resumed.entries)
        assert sorted(epochs[1]) == list(range(24))


def epochs_of(entries):
    """The samples of each epoch."""
    found = []
    for entry in entries:
        if isinstance(entry, str):
            found.append([])
        else:
            found[-1] += entry[0]
    return found


def test_a_state_of_another_data_is_refused(tmp_path):
    path, _ = mid_epoch(tmp_path)
    with pytest.raises(StateError, match="seed was 0 and is 1"):
        train(tmp_path, ckpt_path=path, data_options={"seed": 1})


class Renamed(tdi.InSituDataModule):
    pass


def test_a_data_module_of_another_name_is_told_that_its_state_is_not_loaded(tmp_path):
    path, _ = mid_epoch(tmp_path)
    data = make_data(cls=Renamed)
    with pytest.warns(UserWarning, match="of a data module 'InSituDataModule'.*is 'Renamed'"):
        train(tmp_path, data=data, ckpt_path=path)


def test_a_loader_without_the_callback_is_warned_of_once(tmp_path):
    store = small_store()
    loader = tdi.build_loader(
        store, {"x": tdi.open_arrays(store)["t2m"]}, batch_size=8, budget_bytes=10**7
    )
    trainer = make_trainer(tmp_path)
    with pytest.warns(UserWarning, match="without InSituResume") as warned:
        trainer.fit(Ledger(), loader)
    assert len([w for w in warned if "InSituResume" in str(w.message)]) == 1
    loader.close()


@pytest.mark.parametrize("guarantee", fit_counters.GUARANTEES)
def test_what_a_version_lacks_switches_off_one_guarantee_with_one_warning(
    guarantee, tmp_path, monkeypatch
):
    paths = ("fit_loop.no_such_thing", "fit_loop.nor_this")
    monkeypatch.setitem(fit_counters.GUARANTEES, guarantee, paths)
    with pytest.warns(UserWarning, match=f"no Trainer.fit_loop.no_such_thing.*{guarantee}") as said:
        entries = train(tmp_path, max_epochs=1).entries
    assert len([warning for warning in said if "no Trainer" in str(warning.message)]) == 1
    assert sorted(epochs_of(entries)[0]) == list(range(24))
