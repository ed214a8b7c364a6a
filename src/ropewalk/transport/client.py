"""Dialling: connect to an address, say who we are, return a link that is up."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import select
import socket
import time

from ropewalk.errors import FrameError, LinkClosed, TransportError, TransportRefused
from ropewalk.transport.address import Address, HostAddress, TlsAddress, UnixAddress
from ropewalk.transport.credentials import Credentials
from ropewalk.transport.frames import MEMBER, STRANGER
from ropewalk.transport.handshake import CODEC, Dialling, Ends
from ropewalk.transport.link import Codec, Link, Received
from ropewalk.transport.passport import Passport
from ropewalk.transport.relay import Socket
from ropewalk.transport.streams.plain import PlainStream
from ropewalk.transport.streams.stream import Stream
from ropewalk.transport.unix_sockets import connect_to, seconds_left

#: Another host is given this long to answer directly, before a detour is asked for: TCP dials after 0, 1 and 3 s.
DIRECT_S = 3.5
#: How long connecting and the handshake may take together.
DIAL_S = 10.0
#: How long a process that has just been started tries to reach its owner.
PATIENCE_S = 60.0


def dial(
    address: Address,
    credentials: Credentials,
    codec: Codec,
    *,
    passport: Passport | None = None,
    timeout_s: float = DIAL_S,
) -> Link:
    """Connect, shake hands, and return the link; blocking.

    On the way to a process of another host, what leads there is tried in this order: its TLS port, and a detour
    through agents.

    Args:
        address: whom to reach. A TLS address says which certificate must answer there.
        credentials: who we are.
        codec: the protocol of the link.
        passport: of this process; needed for other hosts only.
        timeout_s: seconds for all of it, however slowly the peer answers.

    Raises:
        TransportRefused: the server answered, and one side does not accept the other; the message says why.
        LinkClosed: nobody answers at the address, or not in time.
    """
    deadline = time.monotonic() + timeout_s
    stream, ends = _connect(address, passport, deadline)
    return _greet(stream, str(address), Dialling(credentials, str(address), ends), codec, deadline)


def dial_owner(address: Address, credentials: Credentials, codec: Codec, *, passport: Passport | None = None) -> Link:
    """As `dial`, for the first words of a process to whoever asked for it, and with patience.

    When hundreds of processes come up at once, the owner may hear some of them late, or hang up on those that wait
    longest. It is there, or the agent would have ended us.

    Raises:
        TransportRefused, LinkClosed: as in `dial`; nobody listens there any more, or did not answer for a minute.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            # One long attempt: to hang up just when the owner has heard us would look like a death.
            return dial(address, credentials, codec, passport=passport, timeout_s=max(1.0, deadline - time.monotonic()))
        except TransportRefused:
            raise
        except LinkClosed as error:
            nobody = isinstance(error.__cause__, FileNotFoundError | ConnectionRefusedError)
            if nobody or time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.1, 1.0))  # so that those who were sent away together come back one by one


def dial_over(
    sock: socket.socket,
    tls: TlsAddress | None,
    credentials: Credentials,
    codec: Codec,
    *,
    passport: Passport | None = None,
    timeout_s: float = DIAL_S,
) -> Link:
    """As `dial`, over a connection that is there already and leads to another host.

    Args:
        sock: ours from now on.
        tls: says which certificate must answer; None if something in between protects the bytes, as ssh does.
        credentials: as in `dial`.
        codec: as in `dial`.
        passport: as in `dial`.
        timeout_s: seconds for the handshakes.

    Raises:
        TransportRefused, LinkClosed: as in `dial`.
    """
    deadline = time.monotonic() + timeout_s
    peer = str(tls or "the other host")
    stream, ends = _speak_tls(sock, tls, passport, deadline) if tls else _through_another(sock)
    return _greet(stream, peer, Dialling(credentials, peer, ends), codec, deadline)


def _greet(stream: Stream, address: str, dialling: Dialling, codec: Codec, deadline: float) -> Link:
    # Whoever is let in may have descriptors right behind the welcome.
    link = Link(stream, CODEC, address, dataclasses.replace(STRANGER, num_fds=MEMBER.num_fds))
    with contextlib.ExitStack() as on_error:
        on_error.callback(link.close)
        try:
            greeting = dialling.answer(_said(link, address, deadline))
            with contextlib.suppress(LinkClosed):  # it may have said why before it hung up
                link.send(greeting)
            dialling.check(_said(link, address, deadline))
        except TransportRefused:
            raise
        except (LinkClosed, FrameError, OSError) as error:
            if isinstance(error, FrameError) and error.peer_protocol:  # to try again would not help
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
            raise  # it is there
        except LinkClosed as error:
            failure = str(error)
            if "refused" not in failure:  # a port where nobody listens says nothing about the way
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
    """To another host, where something in between protects the bytes."""
    return PlainStream(sock, carries_fds=False), Ends()


def _connect_unix(address: UnixAddress, deadline: float) -> tuple[Stream, Ends]:
    return PlainStream(_connect_unix_socket(address, deadline)), Ends()


def _connect_unix_socket(address: UnixAddress, deadline: float) -> socket.socket:
    try:
        return connect_to(address.path, deadline)
    except OSError as error:
        raise LinkClosed(f"nobody answers at {address}: {error}") from error


def connect_to_neighbour(address: HostAddress, timeout_s: float = DIAL_S) -> Socket:
    """A bare connection to a process of this host, for somebody on another one: to its TLS port if it has one.

    Raises:
        LinkClosed: nobody answers there.
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
    # Another process may have taken the port, be it a member of this run: only the one that was meant will do.
    stream.handshake(left_s, lambda fingerprint: fingerprint == address.fingerprint)
    return stream, Ends(dialler=certificate.fingerprint, server=address.fingerprint)


def receive_in_time(link: Link, deadline: float) -> Received | None:
    """The next message of a link without a loop; None when the peer has closed.

    Raises:
        TimeoutError: nothing whole came before the deadline, a monotonic time.
    """
    while True:
        try:
            return link.read_ready()
        except BlockingIOError:
            poller = select.poll()
            poller.register(link.stream.fileno(), select.POLLIN)
            poller.poll(seconds_left(deadline) * 1000)
