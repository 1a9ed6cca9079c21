import inspect
import pickle

import pytest

from torchdata_insitu import errors

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("cls", CLASSES)
def test_one_string_rebuilds_the_exception_on_another_thread_or_process(cls):
    error = cls("array 't2m': 3 against 4")
    assert str(type(error)(str(error))) == "array 't2m': 3 against 4"
    assert str(pickle.loads(pickle.dumps(error))) == "array 't2m': 3 against 4"


@pytest.mark.parametrize("cls", CLASSES)
def test_one_except_clause_catches_everything(cls):
    assert issubclass(cls, errors.InSituError)


@pytest.mark.parametrize(
    "cls, builtin",
    [
        (errors.GeometryError, ValueError),
        (errors.PlanError, ValueError),
        (errors.BudgetError, ValueError),
        (errors.StateError, ValueError),
        (errors.DecodeError, ValueError),
        (errors.ReadError, OSError),
        (errors.ClosedError, RuntimeError),
    ],
)
def test_callers_that_know_only_builtins_catch_them_too(cls, builtin):
    assert issubclass(cls, builtin)
