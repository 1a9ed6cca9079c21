"""Connections that a server on this machine accepts, and the threads that serve them."""

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable

HOST = "127.0.0.1"

_GRACE_S = 1.0
_JOIN_S = 10.0


class LoopbackConnections:
    """Accepts connections on the loopback interface; each is served by a thread of its own.

    Args:
        serve: Called with each connection on its thread, and the connection is closed after it.
            What goes wrong with the connection there ends it and nothing else.

    Attributes:
        port: Where connections are accepted; kept when they are refused for a while.

    Threads:
        One that accepts and one for each connection, ended and joined by `close`.

    Example:
        >>> connections = LoopbackConnections(lambda connection: connection.sendall(b"hello"))
        >>> connections.open()
        >>> with socket.create_connection((HOST, connections.port)) as connection:
        ...     connection.recv(5)
        b'hello'
        >>> connections.close()
    """

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self.port = 0
        self._serve = serve
        self._acceptor: _Acceptor | None = None
        self._threads: dict[socket.socket, threading.Thread] = {}
        # Told of what ends a wait, and not of every request: hundreds may wait.
        self._wakes = threading.Condition()

    def open(self) -> None:
        """Accept connections, on the same port as before."""
        if self._acceptor is None:
            self._acceptor = _Acceptor(self.port, self._take)
            self.port = self._acceptor.port

    def close(self) -> None:
        """Refuse connections from now on, reset those that there are, and end all threads."""
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            acceptor.close()
        with self._wakes:
            threads = dict(self._threads)
            self._threads.clear()
            self._wakes.notify_all()
        for connection, thread in threads.items():
            # Shut for reading, it ends the wait for a request and says nothing to the other side,
            # which then gets a reset when it is closed.
            reset_when_closed(connection)
            _shut(connection, socket.SHUT_RD)
            thread.join(_GRACE_S)
            if thread.is_alive():
                _shut(connection, socket.SHUT_RDWR)
                thread.join(_JOIN_S)

    def wait(
        self,
        connection: socket.socket,
        until: Callable[[], bool] = lambda: False,
        timeout_s: float | None = None,
    ) -> None:
        """Wait while a connection is served, for a time or until something is true.

        Args:
            connection: The one that is served.
            until: Looked at again after each `wake`.
            timeout_s: The longest time; None for any.

        Raises:
            ConnectionAbortedError: `close` was called.
        """
        with self._wakes:
            self._wakes.wait_for(lambda: until() or connection not in self._threads, timeout_s)
            if connection not in self._threads:
                raise ConnectionAbortedError

    def wake(self) -> None:
        """Let those that wait look again whether they still have to."""
        with self._wakes:
            self._wakes.notify_all()

    def _take(self, connection: socket.socket) -> None:
        thread = threading.Thread(
            target=self._run, args=(connection,), name="loopback-connection", daemon=True
        )
        # On the thread that accepts, which `close` joins before it looks at these.
        with self._wakes:
            self._threads[connection] = thread
        try:
            thread.start()
        except RuntimeError:
            # Nobody will serve it, and a thread that has not begun cannot be joined.
            with self._wakes:
                self._threads.pop(connection, None)
            connection.close()

    def _run(self, connection: socket.socket) -> None:
        # The other side may go away at any time, and `close` shuts the connection.
        with contextlib.suppress(OSError), connection:
            self._serve(connection)
        with self._wakes:
            self._threads.pop(connection, None)


class _Acceptor:
    """The thread that accepts connections."""

    def __init__(self, port: int, take: Callable[[socket.socket], None]) -> None:
        self._take = take
        self._socket = socket.create_server((HOST, port), backlog=512)
        self.port: int = self._socket.getsockname()[1]
        self._waker, self._wakes = socket.socketpair()
        self._thread = threading.Thread(target=self._accept, name="loopback-acceptor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._waker.close()
        self._thread.join(_JOIN_S)

    def _accept(self) -> None:
        with self._socket, self._wakes, selectors.DefaultSelector() as selector:
            for each in (self._socket, self._wakes):
                selector.register(each, selectors.EVENT_READ)
            while all(key.fileobj is self._socket for key, _ in selector.select()):
                # The other side may be gone again, this process out of descriptors for now, or on
                # its way out, when no thread can be started any more.
                with contextlib.suppress(OSError, RuntimeError):
                    connection, _ = self._socket.accept()
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._take(connection)


def reset_when_closed(connection: socket.socket) -> None:
    """Let the other side see a reset instead of an end."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _shut(connection: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(how)
