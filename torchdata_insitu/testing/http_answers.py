"""Requests and answers of HTTP/1.1 as bytes, as far as reading files needs them."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import BinaryIO
from urllib.parse import unquote

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
# Clients of some object stores insist on a date; which one does not matter here.
_LAST_MODIFIED = "Thu, 01 Jan 2026 00:00:00 GMT"
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True)
class HttpRequest:
    """The head of a request; a body is not expected."""

    method: str
    key: str
    """Path without the first slash and without the query."""
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """By name in lower case."""


@dataclass(frozen=True)
class HttpAnswer:
    """An answer.

    Example:
        >>> answer = HttpAnswer(404, {"Retry-After": "1"}, b"none")
        >>> answer.head().splitlines()
        [b'HTTP/1.1 404 Not Found', b'Retry-After: 1', b'Content-Length: 4', b'']
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_length: int | None = None
    """What is claimed instead of the length of the body."""

    def head(self) -> bytes:
        """Everything before the body."""
        length = len(self.body) if self.content_length is None else self.content_length
        headers = {**self.headers, "Content-Length": str(length)}
        lines = [f"HTTP/1.1 {self.status} {_PHRASES.get(self.status, 'Unknown')}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def read_request(stream: BinaryIO) -> HttpRequest | None:
    r"""The next request of a connection, None at its end.

    Example:
        >>> import io
        >>> request = read_request(io.BytesIO(b"GET /t/c/0?sig=1 HTTP/1.1\r\nHost: a\r\n\r\n"))
        >>> request.method, request.key, request.query, request.headers
        ('GET', 't/c/0', 'sig=1', {'host': 'a'})
    """
    words = stream.readline().decode("latin-1").split()
    if len(words) < 2:  # noqa: PLR2004
        return None
    headers = {}
    while line := stream.readline().decode("latin-1").strip():
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    path, _, query = words[1].partition("?")
    stream.read(int(headers.get("content-length", "0")))
    return HttpRequest(words[0], unquote(path).lstrip("/"), query, headers)


def etag_of(content: bytes) -> str:
    """The tag of a file's content."""
    return f'"{hashlib.blake2b(content, digest_size=8).hexdigest()}"'


def good_answer(request: HttpRequest, content: bytes, *, ranges: bool, etags: bool) -> HttpAnswer:
    """A file, or the range of it that was asked for.

    Args:
        request: What was asked.
        content: The file.
        ranges: Answer questions for a range with one; else with the whole file, as a server may.
        etags: Name the content by a tag, and refuse where a request names another one.

    Example:
        >>> request = HttpRequest("GET", "a", headers={"range": "bytes=1-2"})
        >>> answer = good_answer(request, b"abcd", ranges=True, etags=False)
        >>> answer.status, answer.body, answer.headers["Content-Range"]
        (206, b'bc', 'bytes 1-2/4')
    """
    headers = {"Content-Type": "application/octet-stream", "Last-Modified": _LAST_MODIFIED}
    if etags:
        headers["ETag"] = etag_of(content)
        wanted = request.headers.get("if-match", headers["ETag"])
        if wanted not in (headers["ETag"], "*"):
            return HttpAnswer(412, headers)
    whole = HttpAnswer(200, headers, content)
    if not ranges:
        return whole
    headers["Accept-Ranges"] = "bytes"
    found = _RANGE.fullmatch(request.headers.get("range", ""))
    if found is None or not (found[1] or found[2]):
        return whole
    size = len(content)
    start = int(found[1]) if found[1] else max(0, size - int(found[2]))
    stop = min(size, int(found[2]) + 1) if found[1] and found[2] else size
    if start >= stop:
        return HttpAnswer(416, {**headers, "Content-Range": f"bytes */{size}"})
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    return replace(whole, status=206, body=content[start:stop])
