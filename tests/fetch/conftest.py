"""Places that hold stores in shards, of each way to read them."""

import pytest

from tests.fetch.shard_stores import PLACES, place_of


@pytest.fixture(params=PLACES)
def place(request, tmp_path, monkeypatch):
    """A place of each kind."""
    with place_of(request.param, tmp_path / "store", monkeypatch) as place:
        yield place


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """A place whose reads are a request each, and which says which."""
    with place_of("http", tmp_path, monkeypatch) as place:
        yield place
