import collections
import warnings

import pytest
import torch
from torchdata.nodes import IterableWrapper

import torchdata_insitu as tdi
from tests.small_loaders import all_ids, make_gather, make_loader, shut_down
from torchdata_insitu.errors import StateError
from torchdata_insitu.testing import check_resume


@pytest.fixture
def no_accelerator(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)


@pytest.fixture
def pins(monkeypatch):
    """An accelerator as far as pinning goes: which tensors were page-locked."""
    pinned = []

    def pin(tensor):
        pinned.append(tensor)
        return tensor

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda t: any(t is p for p in pinned))
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    return pinned


def test_without_an_accelerator_batches_pass_through_with_one_warning(no_accelerator):
    with shut_down(make_gather()) as node:
        expected = all_ids(node)
    with shut_down(tdi.PinMemory(make_gather())) as node:
        with pytest.warns(UserWarning, match="no accelerator"):
            found = all_ids(node)
        node.reset(None)
        # Warnings are errors here, and this is no second one.
        list(node)
        assert found == expected


def test_nothing_is_asked_of_the_accelerator_before_the_first_batch(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: 1 / 0)
    node = tdi.PinMemory(make_gather())
    node.reset(node.state_dict())
    with shut_down(node), pytest.raises(ZeroDivisionError):
        next(node)


def test_what_is_pinned_already_is_left_alone(pins):
    batches = [{"x": torch.ones(2), "y": torch.zeros(2)}]
    pins.append(batches[0]["y"])
    (batch,) = tdi.PinMemory(IterableWrapper(batches))
    assert list(batch) == ["x", "y"]
    assert [id(tensor) for tensor in pins] == [id(batches[0]["y"]), id(batches[0]["x"])]


def test_tensors_inside_other_values_are_pinned_and_other_values_pass(pins):
    Pair = collections.namedtuple("Pair", "first second")  # noqa: PYI024 - a user's own
    values = {
        "list": [torch.ones(1), "text"],
        "tuple": (torch.ones(2), None),
        "pair": Pair(torch.ones(3), 5),
        5: {"inner": torch.ones(4)},
        "text": "abc",
    }
    (batch,) = tdi.PinMemory(IterableWrapper([values]))
    assert batch == values
    assert type(batch["pair"]) is Pair
    assert [tensor.numel() for tensor in pins] == [1, 2, 3, 4]


def test_what_cannot_be_pinned_passes(pins):
    there = torch.ones(2, device="meta")
    sparse = torch.ones(2).to_sparse()
    (batch,) = tdi.PinMemory(IterableWrapper([{"there": there, "sparse": sparse}]))
    assert batch["there"] is there
    assert batch["sparse"] is sparse
    assert pins == []


@pytest.mark.filterwarnings("ignore:PinMemory found no accelerator")
def test_a_loader_that_pins_resumes_exactly(no_accelerator):
    assert check_resume(lambda: make_loader(pin_memory=True)) == 7


def test_the_state_of_another_node_is_refused(no_accelerator):
    with pytest.raises(StateError, match="the state of PinMemory has the one key 'source'"):
        tdi.PinMemory(IterableWrapper([])).reset({"snapshot": {}})


@pytest.mark.parametrize(
    "asked, available, is_there",
    [("auto", True, True), ("auto", False, False), (True, False, True), (False, True, False)],
)
def test_build_loader_pins_where_it_is_asked_to(asked, available, is_there, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: available)
    loader = make_loader(pin_memory=asked)
    assert isinstance(loader.node, tdi.PinMemory) == is_there


@pytest.mark.gpu
def test_batches_are_page_locked():
    if not torch.accelerator.is_available():
        pytest.skip("there is no accelerator")
    with warnings.catch_warnings(), make_loader(pin_memory=True) as loader:
        warnings.simplefilter("error")
        for batch in loader:
            assert all(tensor.is_pinned() for tensor in batch.values())
