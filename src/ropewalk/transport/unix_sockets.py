"""Unix sockets of this host: listening at a path, and connecting to one in time."""

from __future__ import annotations

import errno
import os
import socket
import struct
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
        PermissionError: another user listens there.
        OSError: nobody listens there.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    pause_s = _KNOCK_S
    try:
        while True:
            sock.settimeout(seconds_left(deadline))
            try:
                sock.connect(path)
                _check_listener(sock)
                return sock
            except BlockingIOError:
                time.sleep(min(pause_s, seconds_left(deadline)))
                pause_s = min(2 * pause_s, _LONGEST_KNOCK_S)
    except OSError:
        sock.close()
        raise


def peer_uid(sock: socket.socket) -> int:
    """The user id of the process at the other end of a unix socket, as the kernel tells it."""
    size = struct.calcsize("3i")
    _pid, uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return uid


def _check_listener(sock: socket.socket) -> None:
    """Nothing is said to another user, who may have taken the place of one of our sockets."""
    uid = peer_uid(sock)
    if uid != os.geteuid():
        raise PermissionError(errno.EACCES, f"user {uid} listens there, and not you ({os.geteuid()})")


def seconds_left(deadline: float) -> float:
    """The time until a deadline, for the timeout of the next step.

    Raises:
        TimeoutError: there is none.
    """
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("it took too long")
    return left_s
