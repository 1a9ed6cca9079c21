"""A view by names is the view over the arrays of these names."""

import dataclasses
import pickle

import pytest

import torchdata_insitu as tdi
from torchdata_insitu.errors import GeometryError
from torchdata_insitu.testing import make_store


@pytest.fixture(scope="module")
def arrays():
    return tdi.open_arrays(make_store({"u": (9, 4), "v": (9, 4), "w": (9, 2)}, chunks=(2, 2)))


def test_a_spec_is_what_the_same_calls_make(arrays):
    u, v = arrays["u"], arrays["v"]
    assert tdi.ViewSpec("u").view(arrays) == u.shift(0)
    assert tdi.ViewSpec("u", shift=4).view(arrays) == u.shift(4)
    assert tdi.ViewSpec("u", window=(-1, 0)).view(arrays) == u.window(-1, 0)
    assert tdi.ViewSpec(["u"]).view(arrays) == tdi.stack(u)
    spec = tdi.ViewSpec(("u", "v"), window=[0, 2], shift=-1)
    assert spec.view(arrays) == tdi.stack(u, v).window(0, 2).shift(-1)


def test_lists_as_yaml_has_them_are_the_same_value():
    spec = tdi.ViewSpec(["u", "v"], window=[-1, 0])
    assert spec == tdi.ViewSpec(("u", "v"), window=(-1, 0)) == pickle.loads(pickle.dumps(spec))
    assert len({spec, tdi.ViewSpec(("u", "v"), window=(-1, 0))}) == 1
    assert tdi.ViewSpec(**dataclasses.asdict(spec)) == spec


@pytest.mark.parametrize(
    "arguments, says",
    [
        ({"arrays": []}, r"arrays of a view are \[\]: give a name"),
        ({"arrays": ""}, "arrays of a view are '': give a name"),
        ({"arrays": ["u", 3]}, r"arrays of a view are \['u', 3\]"),
        ({"arrays": {"u": 1}}, "arrays of a view are {'u': 1}"),
        ({"arrays": "u", "window": []}, r"the window of the view of 'u' is \[\]"),
        ({"arrays": "u", "window": 2}, "the window of the view of 'u' is 2: give offsets"),
        ({"arrays": "u", "window": [0, 1.5]}, "window of the view of 'u' has 1.5 of type float"),
        ({"arrays": "u", "shift": "4"}, "shift of the view of 'u' has '4' of type str"),
        ({"arrays": "u", "shift": True}, "shift of the view of 'u' has True of type bool"),
    ],
)
def test_a_spec_that_says_nothing_is_refused(arguments, says):
    with pytest.raises(GeometryError, match=says):
        tdi.ViewSpec(**arguments)


def test_arrays_that_are_not_there_or_do_not_fit_are_refused(arrays):
    with pytest.raises(
        GeometryError, match=r"names \['rain'\], which are not among \['u', 'v', 'w'\]"
    ):
        tdi.ViewSpec(["u", "rain"]).view(arrays)
    with pytest.raises(GeometryError, match=r"'u'.*'w'"):
        tdi.ViewSpec(["u", "w"]).view(arrays)
