import resource

import pytest

from torchdata_insitu.fetch.descriptor_limit import within_descriptors


@pytest.fixture
def files(monkeypatch):
    """Sets how many files the process may open, for the eyes of the module only."""

    def allow(soft):
        monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, resource.RLIM_INFINITY))

    return allow


def test_up_to_a_quarter_of_the_files_is_left_alone(files):
    files(1024)
    assert within_descriptors(256) == 256


def test_more_is_lowered_with_one_warning(files):
    files(1024)
    with pytest.warns(UserWarning, match="from 500 to 256, a quarter of the 1024 files") as said:
        assert within_descriptors(500) == 256
    assert len(said) == 1


def test_one_request_is_always_possible(files):
    files(3)
    assert within_descriptors(1) == 1


def test_without_a_limit_nothing_is_lowered(files):
    files(resource.RLIM_INFINITY)
    assert within_descriptors(10**6) == 10**6
