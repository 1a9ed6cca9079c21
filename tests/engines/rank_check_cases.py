"""What four ranks tell each other in `check_ranks`, run by `tests/test_rank_check.py`."""

import torch.distributed
import torchdata.nodes

import torchdata_insitu as tdi
from tests.small_loaders import make_loader, take
from tests.small_mixes import make_mix
from torchdata_insitu.errors import ReadError

N_RANKS = 4


def agrees(rank):
    return check(make_loader())


def agrees_in_the_middle(rank):
    loader = make_loader(batch_size=1)
    take(loader, 2)
    return check(loader)


def agrees_on_a_mix(rank):
    return check(tdi.InSituLoader(make_mix(batch_size=1)))


def agrees_where_batches_of_each_rank_are_counted(rank):
    """The state of a node of somebody else is of its own rank."""
    node = Seen(make_loader(batch_size=1, prefetch_factor=0).node)
    loader = tdi.InSituLoader(node)
    take(loader, 1)
    assert loader.state_dict()["nodes"]["state"]["seen"] is not None
    return check(loader)


def agrees_in_a_group_that_shares_draws(rank):
    """As in a tensor-parallel group: both have the same data-parallel rank of two."""
    pairs = [torch.distributed.new_group([0, 1]), torch.distributed.new_group([2, 3])]
    return check(make_loader(rank=rank // 2, world_size=2), group=pairs[rank // 2])


def agrees_alone_in_a_mesh(rank):
    """Two shares, each on two ranks."""
    return check(make_loader(rank=rank // 2, world_size=2))


def one_in_another_epoch(rank):
    loader = make_loader()
    loader.set_epoch(3 if rank == 1 else 0)
    return check(loader)


def one_at_another_position(rank):
    loader = make_loader(batch_size=1)
    loader.skip(2 if rank == 3 else 1)
    return check(loader)


def two_of_another_plan(rank):
    return check(make_loader(seed=7 if rank > 1 else 0))


def one_with_another_batch_size(rank):
    return check(make_loader(batch_size=2 if rank == 0 else 4))


def one_of_a_mix_at_another_position(rank):
    loader = tdi.InSituLoader(make_mix(batch_size=1))
    loader.skip(1 if rank == 2 else 0)
    return check(loader)


def one_failed(rank):
    return check(None, error=ReadError("key 't2m/c/0' is not there")) if rank == 2 else agrees(rank)


def one_failed_and_says_so_in_words(rank):
    return check(None, error="no credentials") if rank == 0 else agrees(rank)


def one_has_no_loader(rank):
    return check(None) if rank == 3 else agrees(rank)


def one_cannot_say_where_it_stands(rank):
    loader = make_loader()
    if rank == 1:

        def fails():
            raise LookupError("lost")

        loader.state_dict = fails
    return check(loader)


def all_failed_alike(rank):
    return check(None, error=OSError("host not found"))


def all_with_more_ranks_than_samples(rank):
    return check(make_loader(tail="drop", batch_size=22))


def all_of_rank_0(rank):
    return check(make_loader(rank=0, world_size=N_RANKS))


def ranks_counted_on_each_node_anew(rank):
    return check(make_loader(rank=rank % 2, world_size=N_RANKS))


CASES = {
    case.__name__: case
    for case in (
        agrees,
        agrees_in_the_middle,
        agrees_on_a_mix,
        agrees_where_batches_of_each_rank_are_counted,
        agrees_in_a_group_that_shares_draws,
        agrees_alone_in_a_mesh,
        one_in_another_epoch,
        one_at_another_position,
        two_of_another_plan,
        one_with_another_batch_size,
        one_of_a_mix_at_another_position,
        one_failed,
        one_failed_and_says_so_in_words,
        one_has_no_loader,
        one_cannot_say_where_it_stands,
        all_failed_alike,
        all_with_more_ranks_than_samples,
        all_of_rank_0,
        ranks_counted_on_each_node_anew,
    )
}


class Seen(torchdata.nodes.BaseNode):
    """Keeps the samples of its last batch as its state."""

    def __init__(self, source):
        super().__init__()
        self.source = source
        self.seen = None

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.source.reset(initial_state and initial_state["source"])

    def next(self):
        batch = next(self.source)
        self.seen = batch["sample_index"].tolist()
        return batch

    def get_state(self):
        return {"source": self.source.state_dict(), "seen": self.seen}


def check(loader, **options):
    """What `check_ranks` says, what that came from, and how many collectives it took."""
    n_collectives = 0
    gather = torch.distributed.all_gather_object

    def counting(*arguments):
        nonlocal n_collectives
        n_collectives += 1
        gather(*arguments)

    torch.distributed.all_gather_object = counting
    try:
        tdi.check_ranks(loader, **options)
    except tdi.errors.StateError as error:
        return [str(error), repr(error.__cause__), n_collectives]
    finally:
        torch.distributed.all_gather_object = gather
        if loader is not None:
            loader.close()
    return [None, None, n_collectives]


def main(rank, folder):
    return {name: case(rank) for name, case in CASES.items()}
