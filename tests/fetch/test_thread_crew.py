import threading

import pytest

from torchdata_insitu.fetch.thread_crew import ThreadCrew


@pytest.fixture
def gate():
    gate = threading.Event()
    yield gate
    gate.set()


def test_as_many_threads_start_as_there_is_work_for(gate):
    crew = ThreadCrew()
    for n_lacking, expected in ((2, 2), (0, 2), (-1, 2), (5, 4), (3, 4)):
        crew.grow(n_lacking, 4, "crew", lambda _: gate.wait())
        assert len(crew.threads) == expected
    assert [thread.name for thread in crew.threads] == ["crew-0", "crew-1", "crew-2", "crew-3"]
    assert all(thread.daemon for thread in crew.threads)


def test_a_thread_that_cannot_start_is_done_without(gate, monkeypatch):
    crew = ThreadCrew()
    crew.grow(1, 4, "crew", lambda _: gate.wait())

    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    crew.grow(2, 4, "crew", lambda _: gate.wait())
    assert len(crew.threads) == 1
    with pytest.raises(RuntimeError, match="can't start"):
        ThreadCrew().grow(1, 4, "crew", lambda _: None)
