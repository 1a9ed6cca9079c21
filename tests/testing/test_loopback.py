"""Connections are closed whatever becomes of their threads."""

import socket
import threading

from torchdata_insitu.testing.loopback import HOST, LoopbackConnections


def test_connection_is_closed_where_no_thread_can_be_started(monkeypatch):
    start = threading.Thread.start

    def refuses(thread):
        if thread.name == "loopback-connection":
            raise RuntimeError("can't start new thread")
        start(thread)

    connections = LoopbackConnections(lambda connection: connection.sendall(b"hello"))
    connections.open()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuses)
        with socket.create_connection((HOST, connections.port)) as connection:
            assert connection.recv(5) == b""
    with socket.create_connection((HOST, connections.port)) as connection:
        assert connection.recv(5) == b"hello"
    connections.close()
