"""Texts say what happened and show no secret."""

import traceback
from types import SimpleNamespace

import pytest

from tests.contracts.watchdog import promptly
from torchdata_insitu.redaction import (
    advice,
    http_status,
    reason,
    shown,
    without_secrets,
    without_secrets_in,
)


@pytest.mark.parametrize(
    "url, shown",
    [
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("https://user:pass@example.org/a", "https://example.org/a"),
        ("https://example.org/a?sig=secret&x=1", "https://example.org/a"),
        ("https://example.org?sig=secret", "https://example.org"),
        ("s3://key:secret@bucket/a#secret", "s3://bucket/a"),
        ("https://example.org/a@b", "https://example.org/a@b"),
        ("https://me:a@b@example.org/a", "https://example.org/a"),
        ("https://me:a/b@example.org/a", "https://example.org/a"),
        ("https://me:a?b@example.org:80/a", "https://example.org:80/a"),
        ("https://me:12/b@example.org/a", "https://example.org/a"),
        ("https://me:secret", "https://***"),
        ("http://[::1]:8080/a", "http://[::1]:8080/a"),
        ("http://127.0.0.1:8080/a", "http://127.0.0.1:8080/a"),
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


@pytest.mark.parametrize("part", ["x", "token", "https", "<Token", "://", "a=", '"'])
def test_long_text_is_cut_and_takes_no_time(part):
    with promptly(5):
        assert len(reason(OSError(part * 100_000))) < 400


@pytest.mark.parametrize(
    "text, shown",
    [
        ("two: s3://a:b@c/d and http://e?f", "two: s3://c/d and http://e"),
        ("account_key=abc, region=eu", "account_key=***, region=eu"),
        ("{'aws_secret_access_key'='abc'}", "{'aws_secret_access_key'=***}"),
        ("sv=1&sig=a%2Fb&se=2", "sv=1&sig=***&se=2"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer ***"),
        ("<AWSAccessKeyId>AKIA</AWSAccessKeyId>", "<AWSAccessKeyId>***</AWSAccessKeyId>"),
        ("<Key>t2m/c/0</Key>", "<Key>t2m/c/0</Key>"),
        ("unexpected token: 5", "unexpected token: 5"),
        ("{'secret_access_key': 'AbCd 12'}", "{'secret_access_key': ***}"),
        ('{"aws_session_token": "IQoJ"}', '{"aws_session_token": ***}'),
        ("X-Api-Key: abcd1234", "X-Api-Key: ***"),
        ("password: hunter22 is wrong", "password: *** is wrong"),
        ("Authorization: Token abc, Accept: x", "Authorization: Token ***, Accept: x"),
        ("{'Authorization': 'Custom abcdef'}", "{'Authorization': ***}"),
        ("Authorization: Custom abcdef1 is wrong", "Authorization: *** is wrong"),
        ("Authorization: AWS4-HMAC-SHA256 Credential=a", "Authorization: AWS4-HMAC-SHA256 ***"),
        ("ExpiredToken: The provided one", "ExpiredToken: The provided one"),
        ("401 Unauthorized: not allowed", "401 Unauthorized: not allowed"),
        ("NoCredentialsError: Unable to find any", "NoCredentialsError: Unable to find any"),
    ],
)
def test_texts_lose_what_is_called_a_secret(text, shown):
    assert without_secrets_in(text) == shown


def dumped(line, details=""):
    """An error as obstore makes them."""
    return RuntimeError(f"{line}\n\nDebug source:\n{details}")


def test_body_of_an_answer_is_left_out_but_for_its_code():
    error = dumped(
        "Error performing GET http://h/a in 1ms - Server returned non-2xx status code: "
        "403 Forbidden: <Error><Code>InvalidAccessKeyId</Code><Key>AKIA</Key></Error>"
    )
    text = "GET http://h/a in 1ms - Server returned non-2xx status code: 403 Forbidden"
    assert reason(error) == f"RuntimeError: Error performing {text} (InvalidAccessKeyId)"


def test_what_the_system_said_is_taken_out_of_the_dump():
    error = dumped("HTTP error: error sending request", 'Os { message: "Connection refused" }')
    assert reason(error) == "RuntimeError: HTTP error: error sending request (Connection refused)"


@pytest.mark.parametrize(
    "error, what_to_do",
    [
        (ConnectionRefusedError("Connection refused"), "host"),
        (TimeoutError(), "host"),
        (dumped("error sending request", 'error: "failed to lookup address"'), "host"),
        (PermissionError("Forbidden"), "credentials"),
        (OSError("status code: 401 Unauthorized"), "credentials"),
        (OSError("GET http://169.254.169.254/latest failed"), "give credentials"),
        (OSError("<Code>NoSuchBucket</Code>"), "name of the bucket"),
        (OSError("incorrectly configured region"), "region"),
        (OSError("disk on fire"), "can be reached"),
    ],
)
def test_advice_fits_the_error(error, what_to_do):
    assert what_to_do in advice(error)


def test_advice_looks_at_the_causes():
    error = OSError("it failed")
    error.__cause__ = PermissionError("no")
    assert "credentials" in advice(error)


def test_error_without_a_secret_is_shown_itself():
    error = KeyError("t2m")
    error.__cause__ = LookupError("inner")
    assert shown(error) is error


def test_error_with_a_secret_is_shown_as_one_of_its_class():
    def fail():
        raise ConnectionError("no answer from https://me:secret@h/a")

    with pytest.raises(ConnectionError) as caught:
        fail()
    error = shown(caught.value)
    assert type(error) is ConnectionError
    assert str(error) == "no answer from https://h/a"
    assert error.__traceback__ is caught.value.__traceback__


def test_secrets_of_causes_and_notes_are_hidden():
    error = LookupError("outer")
    error.__cause__ = OSError("http://me:secret@h/a")
    error.__cause__.__context__ = OSError("http://me:secret@h/b")
    error.__cause__.add_note("http://me:secret@h/c")
    made = shown(error)
    text = "".join(traceback.format_exception(made))
    assert "secret" not in text
    assert all(f"http://h/{name}" in text for name in "abc")
    assert str(error.__cause__) == "http://me:secret@h/a"


def test_errors_that_are_causes_of_each_other_come_to_an_end():
    first, second = OSError("http://me:secret@h/a"), OSError("second")
    first.__cause__, second.__cause__ = second, first
    assert "secret" not in "".join(traceback.format_exception(shown(first)))


class Answer(Exception):  # noqa: N818
    """As the errors of client libraries are: made of several things, with a status."""

    def __init__(self, status, url):
        super().__init__(status, url)
        self.status = status


def test_error_that_cannot_be_made_of_a_text_keeps_its_name_and_status():
    error = shown(Answer(403, "http://me:secret@h/a"))
    assert type(error) is OSError
    assert str(error) == "Answer: (403, 'http://h/a')"
    assert error.status == 403


class RespondedError(OSError):
    """As client libraries raise them that keep the answer."""

    def __init__(self, text, response=None):
        super().__init__(text)
        self.response = response


def test_error_that_is_made_of_a_text_keeps_the_status_of_its_answer():
    error = shown(RespondedError("no http://me:secret@h/a", SimpleNamespace(status_code=403)))
    assert type(error) is RespondedError
    assert str(error) == "no http://h/a"
    assert http_status(error) == 403


class SilentError(OSError):
    @property
    def status(self):
        raise RuntimeError("there was no answer to http://me:secret@h/a")


def test_error_whose_status_cannot_be_asked_for_is_shown_without_it():
    assert str(shown(SilentError("no http://me:secret@h/a"))) == "no http://h/a"
