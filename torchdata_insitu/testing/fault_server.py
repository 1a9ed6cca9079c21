"""An HTTP server on this machine that fails on purpose."""

import os
import pathlib
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, NamedTuple, Self

from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from torchdata_insitu.testing.chunk_keys import Match, is_chunk, matcher
from torchdata_insitu.testing.http_answers import HttpAnswer, HttpRequest, good_answer, read_request
from torchdata_insitu.testing.loopback import HOST, LoopbackConnections, reset_when_closed
from torchdata_insitu.testing.server_faults import FaultRule, FaultRules, ServerFault


class Served(NamedTuple):
    """One request and what became of it."""

    method: str
    key: str
    byte_range: str | None
    """The `Range` header."""
    status: int
    """0 where no answer was sent."""


class FaultServer:
    """Serves files by plain HTTP on the loopback interface, well or badly.

    A context manager. `fail` says what goes wrong with which requests, `down` and `up` let the
    server refuse connections for a while.

    Args:
        files: Contents by key, a folder, or a Zarr store, of which a copy is made. A mapping is
            read at every request, so that what is changed in it is served.
        latency_s: Seconds that every answer takes.
        ranges: Answer requests for a range of a file; False sends the whole file instead.
        etags: Send and check an `ETag`.

    Attributes:
        files: The contents by key; empty for a folder.
        requests: Requests by key, whatever became of them.
        log: All requests, in the order of their answers.
        most_inflight: Requests that were answered at the same time, at most.

    Threads:
        One that accepts connections and one for each connection, all ended by `close`.

    Example:
        >>> import torchdata_insitu as tdi
        >>> from torchdata_insitu.testing import make_store
        >>> with FaultServer(make_store({"t": (6, 2)}, chunks=(2, 2))) as server:
        ...     server.fail("t/c/0/0", status=503, times=1)
        ...     store = tdi.open_store(server.url)
        ...     with tdi.build_loader(
        ...         store, tdi.open_arrays(store, "t"), batch_size=6, budget_bytes="10%"
        ...     ) as loader:
        ...         print(next(iter(loader))["t"].sum().item(), server.requests["t/c/0/0"])
        66.0 2
    """

    def __init__(
        self,
        files: Mapping[str, bytes] | str | os.PathLike[str] | Store,
        *,
        latency_s: float = 0.0,
        ranges: bool = True,
        etags: bool = True,
    ) -> None:
        """Take the files; nothing is started."""
        self._folder: pathlib.Path | None = None
        self.files: Mapping[str, bytes] = {}
        if isinstance(files, Store):
            self.files = sync(_contents(files))
        elif isinstance(files, Mapping):
            self.files = files
        else:
            self._folder = pathlib.Path(files)
        self.latency_s = latency_s
        self.ranges = ranges
        self.etags = etags
        self.requests: Counter[str] = Counter()
        self.log: list[Served] = []
        self.most_inflight = 0
        self._inflight = 0
        self._n_stalled = 0
        self._is_released = False
        self._rules = FaultRules()
        self._connections = LoopbackConnections(self._serve)
        # Guards the counts; told whenever one of them changed.
        self._changed = threading.Condition()

    @property
    def url(self) -> str:
        """Of the root, without a slash at the end."""
        return f"http://{HOST}:{self._connections.port}"

    @property
    def n_stalled(self) -> int:
        """Requests that are stalled now."""
        return self._n_stalled

    def fail(
        self,
        match: Match = is_chunk,
        *,
        times: int | None = None,
        first: int = 1,
        **fault: Any,
    ) -> None:
        """Answer some requests badly. Of several rules for one request the newest holds.

        Args:
            match: The keys, as one key, several, or a function of the key; all but metadata unless
                given.
            times: How many requests of each key, those of retries included. None for all.
            first: The request of each key, from 1 and counted from now on, that is the first one.
            fault: What happens: `status` with `headers`, `body`, `content_length`, `cut_after`,
                `stall`, `reset`, `latency_s`, as in `ServerFault`.

        Example:
            >>> with FaultServer({"t/c/0": b"good bytes"}) as server:
            ...     server.fail(status=429, headers={"Retry-After": "1"}, times=1)
            ...     server.fail(first=50, status=403)
            ...     server.fail(status=200, body=b"<html>log in</html>", times=2)
            ...     server.fail(cut_after=5)
        """
        self._rules.add(FaultRule(ServerFault(**fault), matcher(match), first, times))

    def heal(self) -> None:
        """Forget what `fail` was told.

        Example:
            >>> server = FaultServer({})
            >>> server.heal()
        """
        self._rules.clear()

    def release(self) -> None:
        """Let stalled requests, and all that would stall later, go on.

        Example:
            >>> server = FaultServer({})
            >>> server.release()
        """
        self._is_released = True
        self._connections.wake()

    def wait_for(self, condition: Callable[[Self], bool], timeout_s: float = 10.0) -> bool:
        """Wait until something is true of the server, such as `lambda s: s.n_stalled == 2`.

        Returns:
            False if it was not within `timeout_s`.

        Example:
            >>> FaultServer({}).wait_for(lambda server: not server.requests)
            True
        """
        with self._changed:
            return self._changed.wait_for(lambda: condition(self), timeout_s)

    def up(self) -> None:
        """Accept connections, on the port that the server had before.

        Example:
            >>> server = FaultServer({})
            >>> server.up()
            >>> server.close()
        """
        self._connections.open()

    def down(self) -> None:
        """Refuse connections and reset those that are open.

        Example:
            >>> with FaultServer({}) as server:
            ...     server.down()
            ...     server.up()
        """
        self._connections.close()

    def restart(self) -> None:
        """Reset every connection.

        Example:
            >>> with FaultServer({}) as server:
            ...     server.restart()
        """
        self.down()
        self.up()

    def close(self) -> None:
        """End all threads and connections.

        Example:
            >>> FaultServer({}).close()
        """
        self.down()

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _serve(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            while (request := read_request(stream)) is not None:
                if not self._answer(connection, request):
                    break

    def _begin(self, request: HttpRequest) -> None:
        with self._changed:
            self.requests[request.key] += 1
            self._inflight += 1
            self.most_inflight = max(self.most_inflight, self._inflight)
            self._changed.notify_all()

    def _end(self, request: HttpRequest, status: int) -> None:
        byte_range = request.headers.get("range")
        with self._changed:
            self._inflight -= 1
            self.log.append(Served(request.method, request.key, byte_range, status))
            self._changed.notify_all()

    def _answer(self, connection: socket.socket, request: HttpRequest) -> bool:
        """Answer a request, and say whether the connection can go on."""
        status = 0
        self._begin(request)
        try:
            fault = self._rules.next_fault(request.key) or ServerFault()
            latency_s = self.latency_s + fault.latency_s
            if latency_s > 0:
                self._connections.wait(connection, timeout_s=latency_s)
            if fault.stall:
                self._stall(connection)
            if fault.reset:
                reset_when_closed(connection)
                return False
            answer = self._planned(request, fault)
            status = answer.status
        finally:
            # Before it is sent: who got the answer finds it counted.
            self._end(request, status)
        body = b"" if request.method == "HEAD" else answer.body[: fault.cut_after]
        connection.sendall(answer.head() + body)
        return fault.cut_after is None and fault.content_length is None

    def _planned(self, request: HttpRequest, fault: ServerFault) -> HttpAnswer:
        if fault.is_error:
            answer = HttpAnswer(fault.status or 0, body=b"this fails on purpose")
        elif request.method not in ("GET", "HEAD"):
            answer = HttpAnswer(405, {"Allow": "GET, HEAD"})
        elif (content := self._content(request.key)) is not None or fault.body is not None:
            answer = good_answer(request, content or b"", ranges=self.ranges, etags=self.etags)
        else:
            answer = HttpAnswer(404, body=b"there is no such file")
        return replace(
            answer,
            status=answer.status if fault.status is None else fault.status,
            headers={**answer.headers, **fault.headers},
            body=answer.body if fault.body is None else fault.body,
            content_length=fault.content_length,
        )

    def _content(self, key: str) -> bytes | None:
        if self._folder is None:
            return self.files.get(key)
        path = self._folder / key
        is_inside = ".." not in pathlib.PurePosixPath(key).parts
        return path.read_bytes() if is_inside and path.is_file() else None

    def _stall(self, connection: socket.socket) -> None:
        self._count_stalled(1)
        try:
            self._connections.wait(connection, until=lambda: self._is_released)
        finally:
            self._count_stalled(-1)

    def _count_stalled(self, change: int) -> None:
        with self._changed:
            self._n_stalled += change
            self._changed.notify_all()


async def _contents(store: Store) -> dict[str, bytes]:
    prototype = default_buffer_prototype()
    keys = [key async for key in store.list()]
    buffers = [(key, await store.get(key, prototype)) for key in keys]
    return {key: buffer.to_bytes() for key, buffer in buffers if buffer is not None}
