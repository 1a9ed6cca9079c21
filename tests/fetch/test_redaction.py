"""Texts say what happened and show no secret."""

import pytest

from torchdata_insitu.fetch.redaction import reason, without_secrets


@pytest.mark.parametrize(
    "url, shown",
    [
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("https://user:pass@example.org/a", "https://example.org/a"),
        ("https://example.org/a?sig=secret&x=1", "https://example.org/a"),
        ("https://example.org?sig=secret", "https://example.org"),
        ("s3://key:secret@bucket/a#secret", "s3://bucket/a"),
        ("https://example.org/a@b", "https://example.org/a@b"),
    ],
)
def test_urls_lose_what_may_be_a_credential(url, shown):
    assert without_secrets(url) == shown


def test_reason_is_the_kind_and_the_first_line():
    assert reason(OSError("disk on fire\n\nDebug source: 12345")) == "OSError: disk on fire"


def test_error_without_a_text_is_its_kind():
    assert reason(TimeoutError()) == "TimeoutError"


def test_urls_in_a_reason_lose_their_query():
    text = reason(OSError("GET https://u:p@example.org/t?sig=secret failed: 503"))
    assert text == "OSError: GET https://example.org/t failed: 503"


def test_long_text_is_cut():
    assert len(reason(OSError("x" * 10_000))) < 400
