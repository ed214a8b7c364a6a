"""Unix sockets of this host: listening at a path, and connecting to one with a timeout."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time

_KNOCK_S, _LONGEST_KNOCK_S = 0.005, 0.2
"""First and longest delay between retries, in seconds: a unix socket whose queue is full refuses at once instead of
waiting."""


def listen_at(path: str, *, backlog: int) -> socket.socket:
    """Return a listening socket to which only this user can connect.

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
    """Connect to the process that listens at a path; the socket still has a timeout.

    Raises:
        TimeoutError: the deadline, a monotonic time, has passed.
        PermissionError: another user listens there.
        OSError: no process listens there.
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
    """Return the user id of the process at the other end of a unix socket, as the kernel reports it."""
    size = struct.calcsize("3i")
    _pid, uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return uid


def _check_listener(sock: socket.socket) -> None:
    """Check that no other user has taken the place of one of our sockets, before anything is sent."""
    uid = peer_uid(sock)
    if uid != os.geteuid():
        raise PermissionError(errno.EACCES, f"user {uid} listens there, and not you ({os.geteuid()})")


def seconds_left(deadline: float) -> float:
    """Return the time until a deadline in seconds, for the timeout of the next step.

    Raises:
        TimeoutError: the deadline has passed.
    """
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("it took too long")
    return left_s
