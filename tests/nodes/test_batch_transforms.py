import collections
import functools
import pickle

import numpy as np
import pytest
import torch

from tests.small_loaders import FailsAt, ids, make_gather, make_loader, shut_down, values
from torchdata_insitu.errors import PlanError
from torchdata_insitu.nodes.batch_transforms import BatchTransforms, TransformPlace
from torchdata_insitu.nodes.sample_random import SampleRandom

WHERE = TransformPlace(seed=0, epoch=3, position=40)


def given(transform):
    """Whether a transform is called with random numbers."""
    calls = []

    def note(batch):
        calls.append(batch["rng"])
        return batch

    BatchTransforms([transform, note]).apply({"x": torch.ones(2)}, WHERE, np.array([5, 6]))
    assert calls[0] is None or isinstance(calls[0], SampleRandom)
    return calls[0] is not None


def plain(batch):
    return {**batch, "rng": None}


def with_default(batch, other=None):
    assert other is None
    return {**batch, "rng": None}


def with_options(batch, **options):
    assert not options
    return {**batch, "rng": None}


def second(batch, anything):
    return {**batch, "rng": anything}


def by_place_only(batch, rng, /):
    return {**batch, "rng": rng}


def named_later(batch, scale=2, rng=None):
    assert scale == 2
    return {**batch, "rng": rng}


def named_only(batch, *, rng):
    return {**batch, "rng": rng}


def named_with_rest(batch, *rest, rng=None, **options):
    assert not rest
    assert not options
    return {**batch, "rng": rng}


def scaled(batch, scale, rng):
    assert scale == 7
    return {**batch, "rng": rng}


def scale_first(scale, batch):
    assert scale == 7
    return {**batch, "rng": None}


def wraps(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class Plain:
    def __call__(self, batch):
        return plain(batch)

    def method(self, batch):
        return plain(batch)

    def random_method(self, batch, rng):
        return second(batch, rng)

    @staticmethod
    def static(batch, rng):
        return second(batch, rng)


class Random:
    def __call__(self, batch, rng):
        return second(batch, rng)


class PlainModule(torch.nn.Module):
    def forward(self, batch):
        return plain(batch)


class RandomModule(torch.nn.Module):
    def forward(self, batch, rng):
        return second(batch, rng)


class Made(dict):
    def __init__(self, batch):
        super().__init__(batch, rng=None)


PLAIN = {
    "function": plain,
    "lambda": lambda batch: {**batch, "rng": None},
    "a second parameter with a default": with_default,
    "options": with_options,
    "object": Plain(),
    "method": Plain().method,
    "class": Made,
    "partial": functools.partial(scale_first, 7),
    "partial with a second bound": functools.partial(second, anything=None),
    "partial with rng bound": functools.partial(named_later, rng=None),
    "wrapped": wraps(plain),
    "module": PlainModule(),
    "compiled module": torch.compile(PlainModule(), backend="eager"),
    "modules": torch.nn.Sequential(PlainModule(), PlainModule()),
}
RANDOM = {
    "function": second,
    "lambda": lambda batch, rng: {**batch, "rng": rng},
    "by place only": by_place_only,
    "a default": named_later,
    "by name only": named_only,
    "beside any others": named_with_rest,
    "object": Random(),
    "method": Plain().random_method,
    "static method": Plain.static,
    "partial": functools.partial(scaled, scale=7),
    "wrapped": wraps(second),
    "module": RandomModule(),
    "without gradients": torch.no_grad()(second),
}


@pytest.mark.parametrize("transform", PLAIN.values(), ids=PLAIN)
def test_transforms_of_a_batch_alone(transform):
    assert not given(transform)


@pytest.mark.parametrize("transform", RANDOM.values(), ids=RANDOM)
def test_transforms_that_take_random_numbers(transform):
    assert given(transform)


@pytest.mark.parametrize("builtin", [dict, collections.OrderedDict, dict.copy])
def test_builtin_functions_and_types(builtin):
    batch = {"x": torch.ones(2)}
    assert BatchTransforms([builtin]).apply(batch, WHERE, np.array([5, 6])) == batch


def test_a_compiled_module_that_takes_random_numbers_is_told_by_what_it_compiles():
    compiled = torch.compile(RandomModule(), backend="eager")
    assert [call.value for call in BatchTransforms([compiled])._calls] == ["f(batch, rng=rng)"]


def test_transforms_are_looked_at_and_not_called():
    def never(batch):
        raise AssertionError

    BatchTransforms([never])


class Anything(torch.nn.Module):
    def forward(self, *batches):
        return batches


UNCLEAR = {
    "anything": lambda *args: args,
    "anything by name too": lambda *args, **kwargs: (args, kwargs),
    "a batch and anything": lambda batch, *rest: (batch, rest),
    "module of anything": Anything(),
    "nothing": lambda: None,
    "names only": lambda **kwargs: kwargs,
    "three": lambda batch, rng, scale: (batch, rng, scale),
    "two others": lambda batch, scale, shift: (batch, scale, shift),
    "two and rng": lambda batch, scale, *, rng: (batch, scale, rng),
    "needs a name": lambda batch, *, scale: (batch, scale),
    "rng first": lambda rng, batch: (rng, batch),
    "rng alone": lambda rng: rng,
    "rng by name, no batch": lambda *, rng: rng,
}


@pytest.mark.parametrize("transform", UNCLEAR.values(), ids=UNCLEAR)
def test_a_transform_that_cannot_be_told_is_refused_at_once(transform):
    with pytest.raises(PlanError, match=r"batch transform 1 \(.* signature \(.* define it as f\("):
        make_loader(batch_transforms=[plain, transform])


@pytest.mark.parametrize("transforms", [plain, "abc", 5, None, [None], [plain, "abc"], [{}]])
def test_what_is_no_list_of_functions_is_refused(transforms):
    with pytest.raises(PlanError, match=r"give a (list of )?function"):
        make_loader(batch_transforms=transforms)


@pytest.mark.parametrize(
    "result, what", [([1], "a list"), (torch.ones(2), "a Tensor"), (None, "None"), (3, "a int")]
)
def test_a_result_that_is_no_dictionary_is_refused(result, what):
    def broken(batch):
        return result

    text = rf"batch transform 1 \(.*broken\) returned {what}: return the batch.*position 0 of"
    with (
        make_loader(batch_transforms=[dict, broken]) as loader,
        pytest.raises(PlanError, match=text),
    ):
        next(iter(loader))


def test_a_result_may_have_any_keys_and_values():
    result = {5: "five", ("a", "b"): [torch.ones(2)], None: None}

    def replaced(batch):
        return dict(result)

    with make_loader(batch_transforms=[replaced]) as loader:
        assert list(loader) == [result] * 6


@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_an_error_says_which_transform_failed_and_where(prefetch_factor):
    fails = FailsAt(3)
    options = {"batch_transforms": [dict, fails], "prefetch_factor": prefetch_factor}
    with make_loader(**options) as loader:
        with pytest.raises(LookupError) as raised:
            list(loader)
        assert raised.value is fails.error
        note = "in batch transform 1 (FailsAt) at position 8 of epoch 0"
        assert raised.value.__notes__.count(note) == 1


def test_an_error_that_is_raised_again_has_its_note_once():
    error = LookupError("no such thing")

    def fails(batch):
        raise error

    with shut_down(make_gather(transforms=[fails])) as node:
        for _ in range(3):
            node.reset(None)
            with pytest.raises(LookupError):
                next(node)
    assert len(error.__notes__) == 1


@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_a_transform_cannot_end_the_epoch(prefetch_factor):
    def ends(batch):
        return next(iter([]))

    options = {"batch_transforms": [ends], "prefetch_factor": prefetch_factor}
    with make_loader(**options) as loader, pytest.raises(PlanError, match=r"ends\).*StopIteration"):
        next(iter(loader))


def test_transforms_run_in_order_each_on_what_the_last_one_gave():
    transforms = [
        lambda batch: {**batch, "x": batch["x"] * 2},
        lambda batch, rng: {**batch, "x": batch["x"] + rng.integers(1, 2)[:, None, None]},
    ]
    with make_loader(batch_transforms=transforms) as loader:
        for batch in loader:
            assert values(batch) == pytest.approx([2 * n + 1 / 6 for n in ids(batch)])


def test_transforms_travel_with_a_pickled_chain():
    node = pickle.loads(pickle.dumps(make_gather(transforms=[plain, Random(), RandomModule()])))
    with shut_down(node):
        assert isinstance(next(node)["rng"], SampleRandom)
        assert node.batch_transforms[0] is plain


def test_a_changed_batch_changes_no_chunk():
    """The same chunks are drawn from through many batches, and in the next epoch."""

    def spoil(batch):
        batch["copy"] = batch["x"].clone()
        for name in ("x", "sample_index"):
            batch["was_" + name] = batch[name].clone()
            batch[name].fill_(-1)
        return batch

    options = {"batch_size": 1, "block_chunks": 6}
    with make_loader(batch_transforms=[spoil], **options) as loader:
        for _ in range(3):
            seen = []
            for batch in loader:
                assert values(batch, "copy") == batch["was_sample_index"].tolist()
                seen += batch["was_sample_index"].tolist()
            assert sorted(seen) == list(range(22))
        assert sum(loader.stats().reads.values()) == 6
