"""Dialling: connect to an address, say who we are, return a link that is up."""

from __future__ import annotations

import contextlib
import socket

from ropewalk.errors import FrameError, LinkClosed, TransportRefused
from ropewalk.transport.address import Address, UnixAddress
from ropewalk.transport.credentials import Credentials
from ropewalk.transport.frames import MEMBER, STRANGER
from ropewalk.transport.handshake import CODEC, accept_answer, hello
from ropewalk.transport.link import Codec, Link
from ropewalk.transport.streams.plain import PlainStream

#: How long connecting and the handshake may take together.
DIAL_S = 10.0


def dial(address: Address, credentials: Credentials, codec: Codec, *, timeout_s: float = DIAL_S) -> Link:
    """Connect, shake hands, and return the link; blocking.

    Raises:
        TransportRefused: the server answered, and does not accept this process; the message says why.
        LinkClosed: nobody answers at the address, or not in time.
    """
    if not isinstance(address, UnixAddress):
        raise TransportRefused(f"{address}: links between hosts are not dialled from here yet")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(address.path)
    except OSError as error:
        sock.close()
        raise LinkClosed(f"nobody answers at {address}: {error}") from error
    link = Link(PlainStream(sock), CODEC, str(address), STRANGER)
    try:
        sock.settimeout(timeout_s)
        link.send(hello(credentials))
        answer = link.receive()
        sock.settimeout(None)
    except (LinkClosed, FrameError, OSError) as error:
        link.close()
        raise LinkClosed(f"{address} was reached but the handshake failed: {error}") from error
    if answer is None:
        link.close()
        raise LinkClosed(f"{address} closed the connection during the handshake; is the launcher still running?")
    with contextlib.ExitStack() as on_error:
        on_error.callback(link.close)
        accept_answer(answer.message, str(address))
        on_error.pop_all()
    link.relabel(codec, MEMBER)
    return link
