"""Unix sockets of this host: listening at a path, and connecting to one in time."""

from __future__ import annotations

import os
import socket
import time

#: A unix socket whose queue is full refuses at once instead of waiting: how soon to knock again, at first and at last.
_KNOCK_S, _LONGEST_KNOCK_S = 0.005, 0.2


def listen_at(path: str, *, backlog: int) -> socket.socket:
    """A listening socket that only this user can connect to.

    Raises:
        OSError: the path cannot be bound.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        os.chmod(path, 0o600)
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock


def connect_to(path: str, deadline: float) -> socket.socket:
    """A connection to whoever listens at a path, with a timeout still set.

    Raises:
        TimeoutError: not before the deadline, a monotonic time.
        OSError: nobody listens there.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    pause_s = _KNOCK_S
    try:
        while True:
            sock.settimeout(seconds_left(deadline))
            try:
                sock.connect(path)
                return sock
            except BlockingIOError:
                time.sleep(min(pause_s, seconds_left(deadline)))
                pause_s = min(2 * pause_s, _LONGEST_KNOCK_S)
    except OSError:
        sock.close()
        raise


def seconds_left(deadline: float) -> float:
    """The time until a deadline, for the timeout of the next step.

    Raises:
        TimeoutError: there is none.
    """
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("it took too long")
    return left_s
