"""Whether a Ray cluster listens at an address, found out within seconds.

Ray's own connect retries for a minute or more, and then does not say whether the host, the port or the program there is
wrong. Here a plain connection is opened first. A head of Ray speaks gRPC, so it answers the connection preface of
HTTP/2 with a SETTINGS frame (RFC 9113, section 3.4); with RAY_USE_TLS=1 only the connection itself is tried.
"""

from __future__ import annotations

import contextlib
import queue
import re
import socket
import threading

NO_RAY = "no Ray answers"
"""The beginning of every message of `why_not_ray`, which has its advice with it."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The preface of a client, and an empty SETTINGS frame."""
_SETTINGS = 4
_FRAME_HEADER = 9
_ADDRESS = re.compile(r"(?:\[(?P<ip6>[0-9a-fA-F:.]+)\]|(?P<host>[^\[\]:/\s]+)):(?P<port>\d{1,5})")


def why_not_ray(address: str, *, tls: bool = False, timeout_s: float = 5.0) -> str:
    """Return why a cluster cannot be at an address, with advice; empty if one may be.

    Args:
        address: `HOST:PORT`; any other form is left to Ray.
        tls: whether the cluster encrypts its traffic.
        timeout_s: seconds for the name, the connection and the answer together.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match["port"]) < 2**16:
        return ""
    host, port = match["ip6"] or match["host"], int(match["port"])
    found: queue.SimpleQueue[str] = queue.SimpleQueue()
    # A thread, because the resolver of names has timeouts of its own.
    threading.Thread(target=lambda: found.put(_obstacle(host, port, tls, timeout_s)), daemon=True).start()
    try:
        problem = found.get(timeout=timeout_s + 1)
    except queue.Empty:
        problem = f"the name {host} was not resolved or nothing was heard within {timeout_s:g} s"
    if not problem:
        return ""
    return (
        f"{NO_RAY} at {address}: {problem}. Set the option address to the one that `ray start --head` has printed "
        "(port 6379 unless it was given another), check that the head runs (`ray status` on its host) and that no "
        "firewall is between"
    )


def _obstacle(host: str, port: int, tls: bool, timeout_s: float) -> str:
    try:
        connection = socket.create_connection((host, port), timeout_s)
    except TimeoutError:
        return f"the host did not answer within {timeout_s:g} s"
    except OSError as error:
        return error.strerror or str(error)
    with connection:
        return "" if tls else _wrong_program(connection, timeout_s)


def _wrong_program(connection: socket.socket, timeout_s: float) -> str:
    heard = b""
    with contextlib.suppress(OSError):  # what was heard before counts
        connection.settimeout(timeout_s)
        connection.sendall(_PREFACE)
        while len(heard) < _FRAME_HEADER and (data := connection.recv(256)):
            heard += data
    if len(heard) >= _FRAME_HEADER and heard[3] == _SETTINGS and heard[5:9] == bytes(4):
        return ""
    said = f"it said {heard[:40]!r}" if heard else f"it said nothing within {timeout_s:g} s, or hung up"
    return f"another program listens there, which does not speak gRPC ({said})"
