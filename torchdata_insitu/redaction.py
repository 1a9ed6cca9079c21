"""Texts of other libraries, made short, helpful and free of secrets.

Errors of object stores show the URL of the request, which may hold a password or a signature, and
the body of the answer, which may hold the name of a key.
"""

import re
from collections.abc import Iterator, Mapping

# Repetitions are bounded, or a long text without blanks would take time with its square.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]{0,30}://[^\s'\"<>]+")
_NO_PORT = re.compile(r":(?!\d*$)[^\]]*$")
_LONGEST = 300
_HIDDEN = "***"
_VALUE = r"""([bru]?"[^"]*"|[bru]?'[^']*'|[^\s&,;<>)]+)"""
# What is called like this has a secret for its value, in a query, a setting or a document.
_NAMED = re.compile(
    r"""((?:signature|secret|token|passw|credential|auth|access_?key|account_?key|api_?key|\bsig)"""
    r"""[\w-]{0,40}["']?\s{0,9}=\s{0,9})""" + _VALUE,
    re.IGNORECASE,
)
# Behind a colon stands prose as well, so that the name has to end with such a word.
_AUTH_SCHEME = (
    r"(?:(?:Bearer|Basic|Token|Digest|ApiKey|Negotiate|SharedKey|AWS4-[\w-]{1,20})\s{1,9})"
)
_LABELLED = re.compile(
    r"((?:signature|secret|(?<!unexpected )(?<!expired)(?<!invalid)token"
    r"|passw(?:or)?d|passphrase|credentials?"
    r"|(?:access|account|api|private|secret)[_ -]?key(?:[_ -]?id)?|(?<![a-z])auth|\bsig)"
    rf"""["']?\s{{0,9}}:\s{{0,9}}{_AUTH_SCHEME}?){_VALUE}""",
    re.IGNORECASE,
)
# A header: its scheme may have any name, and the secret is what follows that.
_HEADER = re.compile(
    rf"""(authorization["']?\s{{0,9}}[=:]\s{{0,9}})"""
    rf"""(?:({_AUTH_SCHEME})[^\s"'&,;<>)]+|["'][^"']*["']|[^\s"'&,;<>)]+[ ][\w+/=.~-]{{6,}})""",
    re.IGNORECASE,
)
_ELEMENT = re.compile(r"<(\w{0,40}(?:AccessKey|Signature|Token|ToSign|Canonical)\w{0,40})>[^<]*<")
_SCHEME_AND_TOKEN = re.compile(r"\b(Bearer|Basic)\s+[\w+/=.~-]{6,}", re.IGNORECASE)
# obstore: a line for people, then a dump of the request and the answer.
_DUMP = "\n\nDebug source:"
_STATUS = re.compile(r"(status code: \d{3}[^:\n]*): .*", re.DOTALL)
_STATUS_NAMES = ("status", "status_code", "code")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_DETAIL = re.compile(r'(?:message|error): "([^"\\]+)"')


def without_secrets(url: str) -> str:
    """A URL without user, password, query and fragment, which is where credentials are.

    Example:
        >>> without_secrets("https://me:secret@example.org/era5?sig=secret")
        'https://example.org/era5'
    """
    scheme, _, rest = url.partition("://")
    host, _, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    if "@" not in host and (_NO_PORT.search(host) or (":" in host and "@" in path)):
        # A password that is not escaped goes on behind what looks like the end of the host.
        _, at, rest = rest.rpartition("@")
        if not at:
            return f"{scheme}://{_HIDDEN}"
    host, slash, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def without_secrets_in(text: str) -> str:
    """A text in which no URL has credentials, and nothing that is called a secret has its value.

    Example:
        >>> without_secrets_in("GET https://a.org/t?sig=abc failed; account_key=abc is wrong")
        'GET https://a.org/t failed; account_key=*** is wrong'
    """
    text = _URL.sub(lambda url: without_secrets(url[0]), text)
    text = _ELEMENT.sub(rf"<\1>{_HIDDEN}<", text)
    text = _SCHEME_AND_TOKEN.sub(rf"\1 {_HIDDEN}", text)
    text = _HEADER.sub(rf"\1\2{_HIDDEN}", text)
    text = _LABELLED.sub(rf"\1{_HIDDEN}", text)
    return _NAMED.sub(rf"\1{_HIDDEN}", text)


def reason(cause: BaseException) -> str:
    r"""The kind of an error and the first line of its text, without secrets.

    Example:
        >>> reason(OSError("disk on fire\n\nDebug source: 12345"))
        'OSError: disk on fire'
    """
    text = _shown_text(cause).strip().partition("\n")[0]
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}..."
    kind = type(cause).__name__
    return f"{kind}: {text}" if text else kind


def advice(cause: BaseException) -> str:
    """What to do about an error that a store raised.

    Example:
        >>> advice(ConnectionRefusedError("Connection refused"))
        'check the host in the URL, and that this machine can reach it'
    """
    told = " ".join(f"{type(error).__name__} {_shown_text(error)}" for error in _chain(cause))
    return next(advice for pattern, advice in _ADVICE if pattern.search(told))


def shown(cause: BaseException) -> BaseException:
    """What to show of an error that is the cause of another.

    It itself if neither it nor its causes show a secret, else one of the same class where that can
    be made, with the same traceback and a text without secrets.

    Example:
        >>> error = OSError("no answer from https://me:secret@example.org/era5")
        >>> shown(error)
        OSError('no answer from https://example.org/era5')
        >>> error = KeyError("t2m")
        >>> shown(error) is error
        True
    """
    return _shown(cause, set())


def _shown(cause: BaseException, above: set[int]) -> BaseException:
    above = {*above, id(cause)}
    text = _shown_text(cause)
    links = [
        None if link is None or id(link) in above else _shown(link, above)
        for link in (cause.__cause__, cause.__context__)
    ]
    notes = [without_secrets_in(note) for note in getattr(cause, "__notes__", ())]
    if (
        text == str(cause)
        and without_secrets_in(repr(cause)) == repr(cause)
        and links == [cause.__cause__, cause.__context__]
        and notes == list(getattr(cause, "__notes__", ()))
    ):
        return cause
    stand_in = _of_the_same_class(cause, text)
    stand_in.__cause__, stand_in.__context__ = links
    stand_in.__suppress_context__ = cause.__suppress_context__
    for note in notes:
        stand_in.add_note(note)
    return stand_in.with_traceback(cause.__traceback__)


def http_status(error: BaseException) -> int | None:
    """The status of an HTTP answer, where the error of a client library tells it.

    Example:
        >>> import urllib.error
        >>> http_status(urllib.error.HTTPError("http://a.org", 403, "Forbidden", {}, None))
        403
        >>> http_status(OSError("disk on fire"))
    """
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        # As botocore shows it.
        metadata = response.get("ResponseMetadata")
        told = metadata.get("HTTPStatusCode") if isinstance(metadata, Mapping) else None
        return told if isinstance(told, int) else None
    for holder in (error, response):
        for name in _STATUS_NAMES:
            status = getattr(holder, name, None)
            if isinstance(status, int):
                return status
    return None


def _of_the_same_class(cause: BaseException, text: str) -> BaseException:
    kind = type(cause)
    # Whether a read is tried again hangs on the status.
    status = _status_if_told(cause)
    try:
        made = kind(text)
        if _status_if_told(made) != status:
            made.status = status  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - whatever its constructor wants
        made = None
    if type(made) is kind and str(made) == text and _status_if_told(made) == status:
        return made
    stand_in = OSError(f"{kind.__name__}: {text}")
    if status is not None:
        stand_in.status = status  # type: ignore[attr-defined]
    return stand_in


def _status_if_told(error: BaseException) -> int | None:
    try:
        return http_status(error)
    except Exception:  # noqa: BLE001 - a property may be code of others
        return None


def _shown_text(cause: BaseException) -> str:
    text, dump, details = str(cause).partition(_DUMP)
    if dump:
        code = _CODE.search(text)
        text = _STATUS.sub(r"\1", text)
        detail = code or (None if "status code" in text else _DETAIL.search(details))
        if detail is not None:
            text = f"{text} ({detail[1]})"
    return without_secrets_in(text)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


_ADVICE = [
    (re.compile(pattern), what_to_do)
    for pattern, what_to_do in (
        (
            r"NoSuchBucket|NoSuchContainer|ContainerNotFound|bucket does not exist",
            "check the name of the bucket",
        ),
        (
            r"169\.254\.169\.254|metadata\.google",
            "give credentials, or skip_signature=True for a public store",
        ),
        (
            r"\b403\b|Permission|Forbidden|AccessDenied|AccessKey",
            (
                "check credentials and the right to read, or give skip_signature=True for a public "
                "store; one that may not be listed says this of missing keys too"
            ),
        ),
        (
            r"\b401\b|Unauthenticated|[Cc]redential",
            "check credentials, or give skip_signature=True for a public store",
        ),
        (r"[Rr]edirect|\b[Rr]egion\b", "check the region of the bucket"),
        (
            r"[Rr]efused|lookup|reachable|Connect|(?<!retry_)[Tt]imeout|timed out|sending request",
            "check the host in the URL, and that this machine can reach it",
        ),
        ("", "check that the store can be reached and that the key may be read"),
    )
]
