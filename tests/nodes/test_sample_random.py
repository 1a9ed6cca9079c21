import numpy as np
import pytest
import torch
from scipy import stats

import torchdata_insitu as tdi
from tests.small_loaders import N, ids, make_gather, make_loader, shut_down, small_store
from torchdata_insitu.errors import PlanError
from torchdata_insitu.testing import check_resume


def make(samples=(4, 9, 1), **key):
    return tdi.SampleRandom(samples, **{"seed": 0, "epoch": 0, **key})


CALLS = {
    "uniform": lambda rng: rng.uniform(-1, 1, (2, 3)),
    "uniform of 64 bits": lambda rng: rng.uniform(shape=3, dtype=torch.float64),
    "normal": lambda rng: rng.normal(2.0, 0.5, (3,)),
    "normal of 64 bits": lambda rng: rng.normal(shape=[1, 3], dtype=torch.float64),
    "integers": lambda rng: rng.integers(-5, 5, (7,)),
    "a number a row": lambda rng: rng.uniform(),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def test_numbers_come_as_tensors_of_one_row_a_sample():
    rng = make()
    assert rng.uniform().shape == (3,)
    assert rng.normal(shape=(2, 0)).shape == (3, 2, 0)
    assert rng.integers(0, 5, shape=4).shape == (3, 4)
    assert rng.uniform(shape=torch.Size([2]), dtype=torch.float64).dtype == torch.float64
    assert rng.normal().dtype == torch.float32
    assert rng.integers(np.int64(0), np.int32(5)).dtype == torch.int64
    assert rng.uniform().is_contiguous()
    assert make(()).uniform(shape=(2,)).shape == (0, 2)


@each_call
def test_a_row_is_that_of_its_sample(call):
    whole = call(make())
    for row, sample in enumerate((4, 9, 1)):
        for given in ([sample], np.array([sample], np.uint8), torch.tensor([sample])):
            assert torch.equal(call(make(given))[0], whole[row])
    assert torch.equal(call(make((1, 1))), whole[[2, 2]])


@each_call
def test_calls_epochs_seeds_and_places_differ(call):
    rng = make()
    drawn = [call(rng), call(rng)]
    drawn += [call(make(**{name: 1})) for name in ("epoch", "seed", "place")]
    assert len({tuple(values.flatten().tolist()) for values in drawn}) == 5


def test_numbers_have_the_distribution_asked_for():
    rng = make(range(3000))
    uniform = stats.uniform(2, 3).cdf
    assert stats.kstest(rng.uniform(2, 5).numpy(), uniform).pvalue > 0.001
    assert stats.kstest(rng.normal(2, 5).numpy(), stats.norm(2, 5).cdf).pvalue > 0.001
    assert rng.normal(1.5, 0).unique().tolist() == [1.5]
    assert rng.integers(3, 6).unique().tolist() == [3, 4, 5]


def test_what_was_given_may_change_afterwards():
    samples = np.array([4, 9, 1])
    rng = make(samples)
    samples[:] = 0
    assert torch.equal(rng.uniform(), make().uniform())


def test_it_says_what_it_is():
    assert repr(make(epoch=2)) == "SampleRandom(3 samples, seed=0, epoch=2, place=0)"


REFUSED = {
    "low above high": (lambda rng: rng.uniform(2, 1), "low is 2 and high is 1"),
    "low is high": (lambda rng: rng.uniform(1, 1), "low is 1 and high is 1"),
    "equal in float32": (lambda rng: rng.uniform(1, 1 + 1e-12), "float32"),
    "low infinite": (lambda rng: rng.uniform(-np.inf, 1), "low is -inf"),
    "high is none": (lambda rng: rng.uniform(0, None), "high is None of type NoneType"),
    "high beyond float32": (lambda rng: rng.uniform(0, 1e39), "high is 1e\\+39"),
    "high beyond float64": (lambda rng: rng.uniform(0, 10**400), "high is 1000"),
    "high minus low": (lambda rng: rng.uniform(-3e38, 3e38), "high - low"),
    "low true": (lambda rng: rng.uniform(True, 2), "low is True of type bool"),
    "std negative": (lambda rng: rng.normal(0, -1), "std is -1"),
    "std nan": (lambda rng: rng.normal(0, np.nan), "std is nan"),
    "mean text": (lambda rng: rng.normal("0"), "mean is '0' of type str"),
    "no whole number": (lambda rng: rng.integers(0, 2.5), "high .* 2.5 of type float"),
    "integers low is high": (lambda rng: rng.integers(3, 3), "low is 3 and high is 3"),
    "beyond int64": (lambda rng: rng.integers(0, 2**63 + 1), "do not fit int64"),
    "shape of floats": (lambda rng: rng.uniform(shape=(2.0, 3)), r"shape is \(2.0, 3\)"),
    "shape negative": (lambda rng: rng.normal(shape=(-1,)), r"shape is \(-1,\)"),
    "shape text": (lambda rng: rng.integers(0, 2, "23"), "shape is '23' of type str"),
    "shape none": (lambda rng: rng.uniform(shape=None), "shape is None"),
    "shape true": (lambda rng: rng.uniform(shape=True), "shape is True of type bool"),
    "half precision": (lambda rng: rng.normal(dtype=torch.float16), r"torch.float16: .*\.to\("),
    "numpy's type": (lambda rng: rng.uniform(dtype=np.float32), "float32"),
    "type unhashable": (lambda rng: rng.uniform(dtype=[]), r"dtype is \[\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_arguments_of_no_use_are_refused_and_count_for_nothing(case):
    call, text = REFUSED[case]
    rng = make()
    with pytest.raises(PlanError, match=text):
        call(rng)
    assert torch.equal(rng.uniform(), make().uniform())


@pytest.mark.parametrize("samples", [[0.5], 3, [[1]], ["a"], [True]])
def test_samples_are_whole_numbers(samples):
    with pytest.raises(PlanError, match="sample_index is of type"):
        make(samples)


def noise(batch, rng):
    """Adds what was drawn, in three calls, beside the batch."""
    drawn = {
        "u": rng.uniform(shape=(2,)),
        "n": rng.normal(shape=3, dtype=torch.float64),
        "i": rng.integers(0, 1000),
    }
    return {**batch, **drawn}


def plain(batch):
    return batch


def drawn_for(batches):
    """What each sample got; the same each time it came."""
    found = {}
    for batch in batches:
        for row, sample in enumerate(ids(batch)):
            values = [tuple(batch[name][row].flatten().tolist()) for name in ("u", "n", "i")]
            assert found.setdefault(sample, values) == values
    return found


@pytest.fixture(scope="module")
def expected():
    with make_loader(batch_transforms=[noise], seed=3) as loader:
        found = drawn_for(loader)
    assert sorted(found) == list(range(N))
    assert len({value[2] for value in found.values()}) > N // 2
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 1},
        {"batch_size": 7},
        {"batch_size": N},
        {"prefetch_factor": 0},
        {"prefetch_factor": 5},
        {"shuffle": False},
        {"block_chunks": 1, "lanes": 3},
        {"sample_index": "i_of_sample"},
    ],
    ids=str,
)
def test_numbers_do_not_depend_on_how_batches_are_made(expected, options):
    with make_loader(batch_transforms=[noise], seed=3, **options) as loader:
        name = options.get("sample_index", "sample_index")
        batches = [{**batch, "sample_index": batch[name]} for batch in loader]
    assert drawn_for(batches) == expected


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("tail", ["pad", "exact"])
def test_ranks_and_copies_get_the_numbers_of_their_samples(expected, world_size, tail):
    found = {}
    for rank in range(world_size):
        options = {"rank": rank, "world_size": world_size, "tail": tail, "seed": 3}
        with make_loader(batch_transforms=[noise], **options) as loader:
            found |= drawn_for(loader)
    assert found == expected


def test_numbers_are_those_of_the_class_by_hand(expected):
    rng = tdi.SampleRandom(range(N), seed=3, epoch=0)
    by_hand = noise({"sample_index": torch.arange(N)}, rng)
    assert drawn_for([by_hand]) == expected


def test_the_epoch_and_the_place_of_the_transform_count(expected):
    with make_loader(batch_transforms=[noise], seed=3) as loader:
        list(loader)
        second = drawn_for(loader)
    with make_loader(batch_transforms=[plain, noise], seed=3) as loader:
        moved = drawn_for(loader)
    for other in (second, moved):
        assert other.keys() == expected.keys()
        assert all(other[sample] != expected[sample] for sample in expected)


def test_a_transform_that_spoils_the_sample_index_changes_no_number(expected):
    def spoil(batch):
        kept = batch["sample_index"].clone()
        batch["sample_index"].zero_()
        return {**batch, "kept": kept}

    with make_loader(batch_transforms=[spoil, noise], seed=3) as loader:
        spoiled = drawn_for({**batch, "sample_index": batch["kept"]} for batch in loader)
    with make_loader(batch_transforms=[plain, noise], seed=3) as loader:
        assert drawn_for(loader) == spoiled


@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_a_resumed_run_draws_the_same_numbers(prefetch_factor):
    options = {"batch_transforms": [noise], "prefetch_factor": prefetch_factor}
    assert check_resume(lambda: make_loader(**options)) == 7


def test_numbers_of_a_batch_over_several_segments():
    store = small_store(chunk=1)
    with shut_down(make_gather(store, transforms=[noise], block_chunks=1, batch_size=5)) as node:
        for batch in node:
            rng = tdi.SampleRandom(batch["sample_index"], seed=0, epoch=0)
            assert torch.equal(batch["u"], rng.uniform(shape=(2,)))
