"""The physical floor of a pool in Python: forked children, a socket pair each, two tasks in flight.

No deaths, no chunks, no callbacks, no threads, one message at a time: what is
left is the price of pickling and of waking another process. It takes part in
the no-op and round-trip rows with `--floor`. What it unpickles, it has pickled itself.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
from collections.abc import Callable, Sequence
from typing import Any

MESSAGE_LIMIT = 1 << 16
IN_FLIGHT = 2  # one runs, one waits in the socket, so a worker never sleeps between two tasks


class BarePool:
    def __init__(self, workers: int) -> None:
        self.poller = select.epoll()
        self.sockets: dict[int, socket.socket] = {}
        for _ in range(workers):
            # SOCK_SEQPACKET keeps the borders of messages: no header, one system call each way.
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if os.fork() == 0:
                for other in (ours, *self.sockets.values()):
                    other.close()
                serve(theirs)
            theirs.close()
            self.sockets[ours.fileno()] = ours
            self.poller.register(ours, select.EPOLLIN)

    def apply(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        worker = next(iter(self.sockets.values()))
        worker.send(pickle.dumps((0, function, args)))
        return pickle.loads(worker.recv(MESSAGE_LIMIT))[1]  # noqa: S301

    def map(self, function: Callable[..., Any], items: Sequence[Any], chunksize: int | None = 1) -> list[Any]:
        results: list[Any] = [None] * len(items)
        waiting = iter(enumerate(items))
        left = len(items)

        def feed(worker: socket.socket) -> None:
            for index, item in waiting:
                worker.send(pickle.dumps((index, function, (item,))))
                break

        for _ in range(IN_FLIGHT):
            for worker in self.sockets.values():
                feed(worker)
        while left:
            for number, _ in self.poller.poll():
                worker = self.sockets[number]
                index, results[index] = pickle.loads(worker.recv(MESSAGE_LIMIT))  # noqa: S301
                feed(worker)
                left -= 1
        return results

    def terminate(self) -> None:
        for worker in self.sockets.values():
            worker.close()
        self.poller.close()
        for _ in self.sockets:
            os.wait()


def serve(link: socket.socket) -> None:
    while message := link.recv(MESSAGE_LIMIT):
        index, function, args = pickle.loads(message)  # noqa: S301
        link.send(pickle.dumps((index, function(*args))))
    os._exit(0)
