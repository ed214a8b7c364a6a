"""Dialling: connect to an address, authenticate, and return a link that is up."""

from __future__ import annotations

import contextlib
import random
import socket
import time

import msgspec

from ropewalk.errors import FrameError, LinkClosed, TransportError, TransportRefused
from ropewalk.transport.address import Address, HostAddress, TlsAddress, UnixAddress
from ropewalk.transport.credentials import Credentials
from ropewalk.transport.frames import MEMBER, STRANGER
from ropewalk.transport.handshake import CODEC, Dialling, Ends
from ropewalk.transport.joining import Socket
from ropewalk.transport.link import Codec, Link, Received
from ropewalk.transport.passport import Passport
from ropewalk.transport.streams.plain import PlainStream
from ropewalk.transport.streams.stream import Stream
from ropewalk.transport.unix_sockets import connect_to, seconds_left

DIRECT_S = 3.5
"""Timeout of a direct connection to another host, in seconds, before a relay is asked for: TCP dials at 0, 1 and 3 s.
"""
DIAL_S = 10.0
"""Timeout of connecting and the handshake together, in seconds."""
PATIENCE_S = 60.0
"""Timeout within which a process that has just been started must reach its owner, in seconds."""


def dial(
    address: Address,
    credentials: Credentials,
    codec: Codec,
    *,
    passport: Passport | None = None,
    timeout_s: float = DIAL_S,
) -> Link:
    """Connect, shake hands, and return the link; blocking.

    To a process of another host, its TLS port is tried first, then a relay through agents.

    Args:
        address: address of the process to reach. A TLS address says which certificate must answer there.
        credentials: credentials of this process.
        codec: protocol of the link.
        passport: passport of this process; needed for other hosts only.
        timeout_s: seconds for all of it, however slowly the peer answers.

    Raises:
        TransportRefused: the server answered, and one side does not accept the other; the message says why.
        LinkClosed: no process answers at the address, or not in time.
    """
    deadline = time.monotonic() + timeout_s
    stream, ends = _connect(address, passport, deadline)
    return _greet(stream, str(address), Dialling(credentials, str(address), ends), codec, deadline)


def dial_owner(address: Address, credentials: Credentials, codec: Codec, *, passport: Passport | None = None) -> Link:
    """Connect as `dial` does, for the first connection of a process to its owner, with retries.

    When hundreds of processes come up at once, the owner may answer some of them late, or close the connections that
    have waited longest. The owner is alive, or the agent would have ended this process.

    Raises:
        TransportRefused, LinkClosed: as for `dial`; no process listens there any more, or none answered for a minute.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            # One long attempt: to hang up just when the owner has accepted us would look like a death.
            return dial(address, credentials, codec, passport=passport, timeout_s=max(1.0, deadline - time.monotonic()))
        except TransportRefused:
            raise
        except LinkClosed as error:
            nobody = isinstance(error.__cause__, FileNotFoundError | ConnectionRefusedError)
            if nobody or time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.1, 1.0))  # so that processes turned away together do not all return at once


def dial_over(
    sock: socket.socket,
    tls: TlsAddress | None,
    credentials: Credentials,
    codec: Codec,
    *,
    passport: Passport | None = None,
    timeout_s: float = DIAL_S,
) -> Link:
    """Connect as `dial` does, over an existing connection that leads to another host.

    Args:
        sock: the connection; owned by this function from now on.
        tls: address with the certificate that must answer; None if another program protects the bytes, as ssh does.
        credentials: as for `dial`.
        codec: as for `dial`.
        passport: as for `dial`.
        timeout_s: seconds for the handshakes.

    Raises:
        TransportRefused, LinkClosed: as for `dial`.
    """
    deadline = time.monotonic() + timeout_s
    peer = str(tls or "the other host")
    stream, ends = _speak_tls(sock, tls, passport, deadline) if tls else _through_another(sock)
    return _greet(stream, peer, Dialling(credentials, peer, ends), codec, deadline)


def _greet(stream: Stream, address: str, dialling: Dialling, codec: Codec, deadline: float) -> Link:
    # A peer that is let in may receive descriptors immediately after the welcome.
    link = Link(stream, CODEC, address, msgspec.structs.replace(STRANGER, num_fds=MEMBER.num_fds))
    with contextlib.ExitStack() as on_error:
        on_error.callback(link.close)
        try:
            greeting = dialling.answer(_said(link, address, deadline))
            link.send_if_open(greeting)  # a server that has hung up may have said why before
            dialling.check(_said(link, address, deadline))
        except TransportRefused:
            raise
        except (LinkClosed, FrameError, OSError) as error:
            if isinstance(error, FrameError) and error.peer_protocol:  # a retry would not help
                raise TransportRefused(f"{address} does not understand this process: {error}") from error
            raise LinkClosed(f"{address} was reached but the handshake failed: {error}") from error
        on_error.pop_all()
    link.relabel(codec, MEMBER)
    return link


def _said(link: Link, address: str, deadline: float) -> object:
    received = receive_in_time(link, deadline)
    if received is None:
        raise LinkClosed(f"{address} closed the connection during the handshake; it may just have ended")
    return received.message


def _connect(address: Address, passport: Passport | None, deadline: float) -> tuple[Stream, Ends]:
    if isinstance(address, UnixAddress):
        return _connect_unix(address, deadline)
    if isinstance(address, TlsAddress):
        return _speak_tls(_connect_tcp(address, deadline), address, passport, deadline)
    if passport is None or passport.host == address.host:
        return _connect_unix(address.unix, deadline)
    failure = f"{address.host} has no address of its own"
    if address.tls and address.host not in passport.unreachable:
        try:
            first = min(deadline, time.monotonic() + DIRECT_S) if passport.detour else deadline
            return _speak_tls(_connect_tcp(address.tls, first), address.tls, passport, deadline)
        except TransportRefused:
            raise  # the process is there
        except LinkClosed as error:
            failure = str(error)
            if "refused" not in failure:  # a port on which no process listens says nothing about the route
                passport.unreachable.add(address.host)
    if passport.detour is None:
        raise LinkClosed(f"there is no way to {address}: {failure}")
    try:
        sock = passport.detour(address, seconds_left(deadline))
    except (TransportError, OSError) as error:
        raise LinkClosed(f"there is no way to {address.host}: {failure}; and through an agent: {error}") from error
    if address.tls:
        return _speak_tls(sock, address.tls, passport, deadline)
    return _through_another(sock)


def _through_another(sock: socket.socket) -> tuple[Stream, Ends]:
    """Wrap a connection to another host whose bytes another program protects."""
    return PlainStream(sock, carries_fds=False), Ends()


def _connect_unix(address: UnixAddress, deadline: float) -> tuple[Stream, Ends]:
    return PlainStream(_connect_unix_socket(address, deadline)), Ends()


def _connect_unix_socket(address: UnixAddress, deadline: float) -> socket.socket:
    try:
        return connect_to(address.path, deadline)
    except OSError as error:
        raise LinkClosed(f"nobody answers at {address}: {error}") from error


def connect_to_neighbour(address: HostAddress, timeout_s: float = DIAL_S) -> Socket:
    """Open a bare connection to a process of this host, for a process of another one: to its TLS port if it has one.

    Raises:
        LinkClosed: no process answers there.
    """
    deadline = time.monotonic() + timeout_s
    if address.tls:
        return _connect_tcp(address.tls, deadline)
    return _connect_unix_socket(address.unix, deadline)


def _connect_tcp(address: TlsAddress, deadline: float) -> socket.socket:
    try:
        return socket.create_connection((address.ip, address.port), timeout=seconds_left(deadline))
    except OSError as error:
        raise LinkClosed(f"nobody answers at {address.ip}:{address.port}: {error}") from error


def _speak_tls(
    sock: socket.socket, address: TlsAddress, passport: Passport | None, deadline: float
) -> tuple[Stream, Ends]:
    # Only a run that reaches a second host pays for loading `ssl`.
    from ropewalk.transport.streams.tls import TlsStream, client_context

    certificate = passport.certificate if passport else None
    if certificate is None:
        sock.close()
        raise TransportRefused(
            f"{address} speaks TLS and this process has no certificate of the run; its agent has to be started with one"
        )
    try:
        stream = TlsStream(sock, client_context(certificate), server_side=False)
        left_s = seconds_left(deadline)
    except OSError as error:
        sock.close()
        raise LinkClosed(f"{address} was reached and lost again: {error}") from error
    # Another process may have taken the port, perhaps one of this run: only the intended one is accepted.
    stream.handshake(left_s, lambda fingerprint: fingerprint == address.fingerprint)
    return stream, Ends(dialler=certificate.fingerprint, server=address.fingerprint)


def receive_in_time(link: Link, deadline: float) -> Received | None:
    """Return the next message of a link without a loop; None when the peer has closed.

    Args:
        link: the link.
        deadline: a monotonic time.

    Raises:
        TimeoutError: no whole message arrived before the deadline.
    """
    while True:
        try:
            return link.read_ready()
        except BlockingIOError:
            link.wait(seconds_left(deadline))
