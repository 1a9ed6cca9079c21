"""The names of the package: they exist, say what they do with an example, and import lightly."""

import doctest
import inspect
import pathlib
import subprocess
import sys
import tomllib

import pytest

import torchdata_insitu as tdi
import torchdata_insitu.testing

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODULES = [tdi, torchdata_insitu.testing]
OF_LIGHTNING = ["InSituDataModule", "InSituResume"]
PUBLIC = [(module, name) for module in MODULES for name in module.__all__]
PUBLIC += [(tdi, name) for name in OF_LIGHTNING]


def test_import_loads_no_optional_library():
    code = (
        "import sys\nfrom torchdata_insitu import *\n"
        "heavy = {'lightning', 'pytorch_lightning', 'matplotlib', 'xarray'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names_that_need_lightning_are_found_and_not_among_all():
    assert set(OF_LIGHTNING) <= set(dir(tdi))
    assert not set(OF_LIGHTNING) & set(tdi.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'InSituModule'"):
        tdi.InSituModule  # noqa: B018


def test_names_are_listed_once_and_sorted_for_a_reader():
    for module in MODULES:
        assert len(set(module.__all__)) == len(module.__all__)


@pytest.mark.parametrize(
    "module, name", PUBLIC, ids=lambda value: getattr(value, "__name__", value)
)
def test_public_name_has_an_example_that_can_run(module, name):
    value = getattr(module, name)
    if not callable(value):
        assert inspect.ismodule(value) or isinstance(value, str)
        return
    text = inspect.getdoc(value) or ""
    assert "Example:" in text
    assert doctest.DocTestParser().get_examples(text)


def test_examples_of_the_package_are_run():
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert "--doctest-modules" in options["addopts"]
    assert "torchdata_insitu" in options["testpaths"]
