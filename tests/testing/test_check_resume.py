import itertools

import pytest
import torch
from torchdata.nodes import Mapper

import torchdata_insitu as tdi
from tests.small_loaders import make_gather, make_loader
from torchdata_insitu.testing import check_resume

N_BATCHES = 6


def test_a_loader_that_resumes_passes_at_every_position():
    assert check_resume(make_loader) == N_BATCHES + 1
    assert check_resume(make_loader, positions=[2, N_BATCHES], n_epochs=3) == 2


def test_loaders_are_closed():
    loaders = []

    def make():
        loaders.append(make_loader())
        return loaders[-1]

    check_resume(make, positions=[3])
    assert len(loaders) == 2
    assert all(loader.chain.pool_node.pool.n_passes == 0 for loader in loaders)


def numbered(start):
    """Batches numbered from where each loader begins: what a resume cannot know."""
    numbers = itertools.count(start)
    return lambda batch: {**batch, "number": torch.tensor([next(numbers)])}


def test_values_that_a_resume_does_not_bring_back_are_found():
    with pytest.raises(AssertionError, match="after 1 batches: 'number' of batch 0 differs"):
        check_resume(lambda: make_loader(batch_transforms=[numbered(0)]))


def made_of(*loaders):
    """The first for the run that never stops, the second for those that resume."""
    given = iter(loaders)
    return lambda: next(given)


def test_another_length_is_found():
    with pytest.raises(AssertionError, match="after 0 batches: 5 batches were left, not 6"):
        check_resume(made_of(make_loader(), make_loader(tail="drop")))


def test_other_names_are_found():
    with pytest.raises(AssertionError, match=r"batch 0 has \['x', 'n'\], not \['x', 'sample_in"):
        check_resume(made_of(make_loader(), make_loader(sample_index="n")))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.double(),
        lambda x: x.reshape(len(x), 6),
        lambda x: -x,
        lambda x: torch.where(x == 0, -x, x),
    ],
    ids=["dtype", "shape", "values", "sign of zero"],
)
def test_other_values_are_found(change):
    def transform(batch):
        return {**batch, "x": change(batch["x"])}

    with pytest.raises(AssertionError, match=r"'x' of batch .* differs"):
        check_resume(made_of(make_loader(), make_loader(batch_transforms=[transform])))


def test_nan_equals_nan():
    def transform(batch):
        return {**batch, "x": batch["x"] * float("nan")}

    assert check_resume(lambda: make_loader(batch_transforms=[transform]), positions=[1]) == 1


def test_what_is_no_tensor_is_compared_too():
    def named(batch):
        return {**batch, "names": [f"sample {n}" for n in batch["sample_index"].tolist()]}

    def make():
        return tdi.InSituLoader(Mapper(make_gather(), named))

    assert check_resume(make) == N_BATCHES + 1
    other = tdi.InSituLoader(Mapper(make_gather(), lambda batch: {**named(batch), "names": []}))
    with pytest.raises(AssertionError, match="'names' of batch"):
        check_resume(made_of(make(), other))


def test_half_precision_is_compared():
    def transform(batch):
        return {**batch, "x": batch["x"].bfloat16(), "scalar": torch.tensor(1.0)}

    assert check_resume(lambda: make_loader(batch_transforms=[transform]), positions=[2]) == 1
