"""Where a loader stands once a trainer has said which of its epochs begins."""

from tests.small_loaders import all_ids, state_after, take

N_BATCHES = 6


def begins(loader, epoch):
    loader.batch_sampler.sampler.set_epoch(epoch)


def test_a_loaded_place_of_the_epoch_that_begins_is_kept(loader, epochs):
    loader.load_state_dict(state_after(1, 2))
    begins(loader, 1)
    assert all_ids(loader) == epochs[1][2:]


def test_a_loaded_place_of_an_epoch_that_has_ended_is_left(loader, epochs):
    """As with a limit on the batches of an epoch: the rest of it is not trained on."""
    loader.load_state_dict(state_after(0, 4))
    items = iter(loader)
    begins(loader, 1)
    assert all_ids(items) == epochs[1]


def test_a_loaded_place_of_the_next_epoch_is_kept_without_a_word(loader, epochs):
    """As when the last batch was trained on, and the trainer has still to close its epoch."""
    loader.load_state_dict(state_after(0, N_BATCHES))
    for epoch in (0, 1):
        begins(loader, epoch)
        assert (loader.epoch, loader.position) == (1, 0)
    assert all_ids(loader) == epochs[1]


def test_what_was_not_loaded_goes_where_the_trainer_says(loader, epochs):
    begins(loader, 2)
    assert all_ids(loader) == epochs[2]
    begins(loader, 0)
    assert all_ids(loader) == epochs[0]


def test_once_a_loaded_place_has_begun_the_trainer_counts(loader, epochs):
    loader.load_state_dict(state_after(2, 2))
    take(loader, 1)
    begins(loader, 1)
    assert all_ids(loader) == epochs[1]
