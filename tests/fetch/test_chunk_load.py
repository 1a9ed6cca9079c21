"""A load tells its callback how much of it was not in the store."""

import pytest

from tests.fake_stores import only
from tests.fetch.loads import Loads, fetching, one_array
from torchdata_insitu.testing import FaultStore, make_store

MISSING = ("t/c/0/0", "t/c/2/0", "t/c/2/1")


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_done_sees_how_many_stored_chunks_were_missing(kind, tmp_path):
    path = tmp_path if kind == "folder" else None
    store = make_store({"t": (6, 4)}, chunks=(2, 2), path=path)
    for key in MISSING if path else ():
        (path / key).unlink()
    seen = {}

    class Notes(Loads):
        def done(self, load, error):
            seen[load.sample_run] = load.n_missing
            super().done(load, error)

    array = one_array(store)
    read = store if path else FaultStore(store, "missing", match=only(*MISSING))
    with fetching(read, array) as fetcher:
        loads = Notes(array)
        assert [load.n_missing for load in loads.loads] == [0, 0, 0]
        fetcher.submit(loads.loads)
        loads.wait()
    assert seen == {0: 1, 1: 0, 2: 2}


def test_what_must_not_be_missing_is_not_counted_as_filled():
    store = make_store({"t": (6, 4)}, chunks=(2, 2))
    array = one_array(store)
    read = FaultStore(store, "missing", match=only(*MISSING))
    with fetching(read, array, on_missing="raise") as fetcher:
        loads = Loads(array)
        fetcher.submit(loads.loads)
        assert sorted(loads.wait().errors) == [0, 2]
    assert [load.n_missing for load in loads.loads] == [0, 0, 0]
