"""Texts of other libraries, made short and free of secrets."""

import re

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^\s'\"<>]+")
_LONGEST = 300


def without_secrets(url: str) -> str:
    """A URL without user, password, query and fragment, which is where credentials are."""
    scheme, _, rest = url.partition("://")
    host, slash, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def reason(cause: BaseException) -> str:
    """The kind of an error and the first line of its text.

    Errors of object stores go on with a dump of the request and the body of the answer.
    """
    line = str(cause).strip().partition("\n")[0]
    text = _URL.sub(lambda url: without_secrets(url[0]), line)
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}..."
    kind = type(cause).__name__
    return f"{kind}: {text}" if text else kind
