"""Errors of the library: the class, and the facts its text must name."""

import contextlib

import pytest


@contextlib.contextmanager
def refused(kind, *facts):
    """Fail unless the block raises exactly this class, with every fact in its text."""
    with pytest.raises(kind) as caught:
        yield caught
    assert type(caught.value) is kind
    text = str(caught.value)
    missing = [fact for fact in facts if str(fact) not in text]
    assert not missing, f"{missing} not in: {text}"
