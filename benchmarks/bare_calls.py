"""The floor of a call in Python: a unix socket, one thread for each connection, and pickle.

    client: pickle (name, arguments) > sendall(4 bytes of length + body) > recv(4 bytes) > recv(body) > unpickle
    server: the connection's thread does the same the other way round, and calls the method in between

No deadlines, no identifiers, no exceptions that travel, no restarts, no turns among callers. The body is one pickle of
protocol 5 with arrays inside (in band); a large one is sent after its length instead of together with it, which saves
a copy. What is unpickled here was pickled here.
"""

from __future__ import annotations

import functools
import pickle
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

LENGTH = struct.Struct("!I")


class BareClient:
    """One connection. A future is the next reply that has not been read: results come in the order of the calls."""

    def __init__(self, path: str) -> None:
        self.link = socket.socket(socket.AF_UNIX)
        self.link.connect(path)

    def call(self, name: str, *arguments: Any) -> Any:
        send(self.link, (name, arguments))
        return receive(self.link)

    def method(self, name: str) -> Callable[..., Any]:
        return functools.partial(self.call, name)

    def futures(self, name: str) -> Callable[..., NextReply]:
        def call(*arguments: Any) -> NextReply:
            send(self.link, (name, arguments))
            return NextReply(self.link)

        return call

    def close(self) -> None:
        self.link.close()


class NextReply:
    __slots__ = ("link",)

    def __init__(self, link: socket.socket) -> None:
        self.link = link

    def result(self) -> Any:
        return receive(self.link)


def send(link: socket.socket, content: object) -> None:
    body = pickle.dumps(content, 5)
    head = LENGTH.pack(len(body))
    if len(body) < 65_536:
        link.sendall(head + body)
    else:
        link.sendall(head)
        link.sendall(body)


def receive(link: socket.socket) -> Any:
    head = link.recv(LENGTH.size, socket.MSG_WAITALL)
    if not head:
        raise EOFError("the other end has closed the connection")
    (size,) = LENGTH.unpack(head)
    return pickle.loads(link.recv(size, socket.MSG_WAITALL))  # noqa: S301


def serve(listener: socket.socket, target: object) -> None:
    """Accepts connections until the process is ended."""
    while True:
        link, _ = listener.accept()
        threading.Thread(target=serve_connection, args=(link, target), daemon=True).start()


def serve_connection(link: socket.socket, target: object) -> None:
    with link:
        while True:
            try:
                name, arguments = receive(link)
            except (EOFError, ConnectionError):
                return
            send(link, getattr(target, name)(*arguments))
