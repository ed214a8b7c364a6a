"""Connecting to another process through a relay: this side shows a ticket, and waits for the other one.

GREETING, ticket ─▶ relay ─▶ YES, then every byte is the other side's; or NO, a length and the reason
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import time

from ropewalk.errors import LinkClosed, TransportRefused
from ropewalk.escaping import escaped
from ropewalk.transport.address import UnixAddress
from ropewalk.transport.unix_sockets import connect_to, seconds_left

GREETING = b"ropewalk-switchboard "
TICKET_DIGITS = 32
YES, NO = b"\x01", b"\x00"

Socket = socket.socket
"""What `join` returns; for modules that know of no sockets themselves."""


def new_ticket() -> str:
    """Return a new ticket: 128 random bits, as 32 hexadecimal digits."""
    return secrets.token_hex(TICKET_DIGITS // 2)


def join(address: UnixAddress | tuple[str, int], ticket: str, timeout_s: float) -> socket.socket:
    """Connect to a relay, show the ticket, and wait for the other side; blocking.

    Args:
        address: address at which the relay listens.
        ticket: the ticket, which the other side was told as well.
        timeout_s: seconds for all of it.

    Returns:
        The socket, blocking; its next byte is the first of the other side.

    Raises:
        TransportRefused: the ticket is not valid, or the other side did not come in time.
        LinkClosed: no relay answers at the address, or not in time.
    """
    deadline = time.monotonic() + timeout_s
    where = str(address) if isinstance(address, UnixAddress) else f"{address[0]}:{address[1]}"
    try:
        sock = _connect(address, deadline)
    except OSError as error:
        raise LinkClosed(f"no relay answers at {where}: {error}") from error
    with contextlib.ExitStack() as on_error:
        on_error.callback(sock.close)
        try:
            sock.settimeout(seconds_left(deadline))
            sock.sendall(GREETING + ticket.encode())
            reason = _wait_for_answer(sock, deadline)
        except TimeoutError as error:
            raise LinkClosed(f"the other side did not come to the relay at {where} in {timeout_s:g} s") from error
        except OSError as error:
            raise LinkClosed(f"the relay at {where} was reached and lost again: {error}") from error
        if reason:
            raise TransportRefused(f"the relay at {where} refused this process: {reason}", reason=reason)
        sock.settimeout(None)
        on_error.pop_all()
    return sock


def _connect(address: UnixAddress | tuple[str, int], deadline: float) -> socket.socket:
    if isinstance(address, UnixAddress):
        return connect_to(address.path, deadline)
    return socket.create_connection(address, timeout=seconds_left(deadline))


def _wait_for_answer(sock: socket.socket, deadline: float) -> str:
    """Return why we were refused; empty if we were joined. Reads nothing of what follows."""
    answer = _receive_exactly(sock, 1, deadline)
    if answer == YES:
        return ""
    if answer != NO:
        return "it gave an answer that no relay gives"
    (size,) = _receive_exactly(sock, 1, deadline)
    return escaped(_receive_exactly(sock, size, deadline).decode(errors="replace"))  # any process may have sent it


def _receive_exactly(sock: socket.socket, size: int, deadline: float) -> bytes:
    received = b""
    while len(received) < size:
        sock.settimeout(seconds_left(deadline))
        more = sock.recv(size - len(received))
        if not more:
            raise ConnectionError("it hung up")
        received += more
    return received
