"""Whether this process can open a TCP connection to an address, and if not: what prevents it, and who can fix it.

The kernel reports a packet that is dropped, one that is rejected, a host that is down and a port without a listener in
the same words ("No route to host"), or with nothing but a timeout. This module groups them by their remedy, and names
the direction: of two hosts that cannot connect, one usually can reach the other.
"""

from __future__ import annotations

import enum
import errno
import socket
from dataclasses import dataclass
from pathlib import Path

from ropewalk.errors import TransportRefused

_NEIGHBOUR_S = 1.0


class Obstacle(enum.Enum):
    """What prevents a connection; the value says what to do about it."""

    REFUSED = (
        "nothing listens there or a firewall rejects it; see whether {target} still runs, and whether a firewall on "
        "the way lets connections to TCP port {port} through"
    )
    TIMED_OUT = (
        "nothing answers; a firewall or security group on the way probably drops it: let TCP port {port} in at {ip}, "
        "or see whether that host is up"
    )
    NO_ROUTE = (
        "that host is down, on another network, or behind a firewall that rejects; compare its address with the "
        "networks of this host (`ip route get {ip}`)"
    )
    FORBIDDEN = "a firewall or a sandbox on this host itself forbids it; let connections to TCP port {port} out"
    TLS = "something else listens there, or the two belong to different runs; see who has TCP port {port} of {ip}"
    UNKNOWN = "see whether {ip} is the address that {target} has on a network of this host"


_BY_NUMBER = {
    errno.ECONNREFUSED: Obstacle.REFUSED,
    errno.ECONNRESET: Obstacle.REFUSED,
    errno.ETIMEDOUT: Obstacle.TIMED_OUT,
    errno.ENETUNREACH: Obstacle.NO_ROUTE,
    errno.EHOSTUNREACH: Obstacle.NO_ROUTE,
    errno.EHOSTDOWN: Obstacle.NO_ROUTE,
    errno.ENETDOWN: Obstacle.NO_ROUTE,
    errno.EPERM: Obstacle.FORBIDDEN,
    errno.EACCES: Obstacle.FORBIDDEN,
}


@dataclass(frozen=True, slots=True)
class Unreached:
    """A connection that was not made."""

    ip: str
    port: int
    obstacle: Obstacle
    why: str
    """How the attempt ended, such as "timed out after 3 s"."""

    def explain(self, source: str, target: str) -> str:
        """Explain which side cannot reach which, why, and what to do next.

        Args:
            source: this process, such as "agent-2 on n2 (10.77.0.3)".
            target: the process that should answer, such as "the launcher".
        """
        where = f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"
        advice = self.obstacle.value.format(ip=self.ip, port=self.port, target=target)
        failed = f"reaches {where} but not {target} there" if self.obstacle is Obstacle.TLS else "cannot reach"
        if self.obstacle is not Obstacle.TLS:
            failed += f" {target} at {where}"
        return f"{source} {failed}: {self.why}; {advice}"


def is_answered(path: Path) -> bool:
    """Return whether a process listens on a unix socket; connects and hangs up. A full queue counts as a listener."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_NEIGHBOUR_S)
        try:
            sock.connect(str(path))
        except (BlockingIOError, TimeoutError):
            return True
        except OSError:
            return False
    return True


def unreached(ip: str, port: int, error: BaseException, timeout_s: float) -> Unreached:
    """Describe the error with which an attempt to connect has ended, or that was caused by such an error.

    Args:
        ip: address of the attempt.
        port: port of the attempt.
        error: from `socket.create_connection`, `dial` and the like.
        timeout_s: timeout of the attempt in seconds.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, TransportRefused):
            return Unreached(ip, port, Obstacle.TLS, str(cause))
        if isinstance(cause, OSError) and cause.errno in _BY_NUMBER and _BY_NUMBER[cause.errno] != Obstacle.TIMED_OUT:
            return Unreached(ip, port, _BY_NUMBER[cause.errno], _lower(cause.strerror or str(cause)))
        if isinstance(cause, TimeoutError):
            return Unreached(ip, port, Obstacle.TIMED_OUT, f"timed out after {timeout_s:.2g} s")
        cause = cause.__cause__
    return Unreached(ip, port, Obstacle.UNKNOWN, str(error))


def _lower(words: str) -> str:
    return words[:1].lower() + words[1:]
