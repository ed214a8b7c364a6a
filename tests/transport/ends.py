"""Links and listeners for tests, over each kind of stream."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from ropewalk.transport.authority import RunAuthority
from ropewalk.transport.client import dial
from ropewalk.transport.credentials import AllowList, Credentials, ProcessCertificate
from ropewalk.transport.link import Codec, Link
from ropewalk.transport.loop import Loop
from ropewalk.transport.passport import Passport
from ropewalk.transport.server import Listener, UnixListener
from ropewalk.transport.streams.plain import PlainStream
from ropewalk.transport.streams.stream import Stream
from ropewalk.transport.streams.tls import TlsStream, client_context, server_context
from ropewalk.transport.tls_server import TlsListener
from tests.patience import PATIENCE_S

RUN = "run-1"


class Note(msgspec.Struct, tag="note"):
    """A message with a number and a text."""

    number: int
    text: str = ""


class Question(msgspec.Struct, tag="question"):
    """Another message of the same protocol."""

    about: dict[str, list[int]]


NOTES = Codec(Note | Question)


@functools.cache
def authority() -> RunAuthority:
    return RunAuthority.create(RUN)


@functools.cache
def certificate(process_id: str) -> ProcessCertificate:
    return authority().issue(process_id)


def unix_streams() -> tuple[Stream, Stream]:
    ours, theirs = socket.socketpair()
    return PlainStream(ours), PlainStream(theirs)


@functools.cache
def contexts() -> Any:
    return client_context(certificate("client")), server_context(certificate("server"))


def tls_streams() -> tuple[Stream, Stream]:
    for_client, for_server = contexts()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = TlsStream(socket.create_connection(listener.getsockname()), for_client, server_side=False)
        theirs = TlsStream(listener.accept()[0], for_server, server_side=True)
    with ThreadPoolExecutor(1) as executor:
        answered = executor.submit(theirs.handshake, PATIENCE_S, lambda _: True)
        ours.handshake(PATIENCE_S, lambda _: True)
        answered.result()
    return ours, theirs


STREAMS: dict[str, Callable[[], tuple[Stream, Stream]]] = {"unix": unix_streams, "tls": tls_streams}


def pair() -> tuple[Link, Link]:
    ours, theirs = socket.socketpair()
    return Link(PlainStream(ours), NOTES, "theirs"), Link(PlainStream(theirs), NOTES, "ours")


@contextlib.contextmanager
def running_loop() -> Generator[Loop]:
    loop = Loop()
    loop.start("test-loop")
    try:
        yield loop
    finally:
        loop.stop()
        assert loop.thread
        loop.thread.join(PATIENCE_S)
        assert not loop.thread.is_alive()


def on_loop(loop: Loop, call: Callable[[], Any]) -> Any:
    """Make a call on a loop and return its result."""
    done = threading.Event()
    result: list[Any] = []

    def make() -> None:
        try:
            result.append(call())
        finally:
            done.set()

    loop.call_soon(make)
    assert done.wait(PATIENCE_S), "the loop does not answer"
    assert result, "the call on the loop raised; see the log"
    return result[0]


class Server:
    """A listener on a loop of its own that answers each note with its double, and what tests need to reach it."""

    def __init__(self, loop: Loop, kind: str, folder: str) -> None:
        self.kind = kind
        self.loop = loop
        self.members = AllowList()
        self.up: list[str] = []
        self.links: dict[str, Link] = {}
        self.gone: list[str] = []
        if kind == "unix":
            self.listener: Listener = UnixListener(
                loop, os.path.join(folder, "sock"), RUN, self.members, NOTES, self._linked
            )
        else:
            self.listener = TlsListener(
                loop, "127.0.0.1", 0, certificate("server"), RUN, self.members, NOTES, self._linked
            )
        self.address: Any = self.listener.address  # type: ignore[attr-defined]
        on_loop(loop, self.listener.open)

    def _linked(self, process_id: str, link: Link) -> None:
        self.up.append(process_id)
        self.links[process_id] = link

        def answer(received: Any) -> None:
            link.send(Note(received.message.number * 2), received.parts)

        self.loop.add_link(link, answer, lambda _why: self.gone.append(process_id))

    def member(self, process_id: str) -> Credentials:
        """Credentials that are good here."""
        credentials = Credentials.create(RUN, process_id)
        fingerprint = certificate(process_id).fingerprint if self.kind == "tls" else None
        self.members.admit(process_id, credentials.secret, fingerprint)
        return credentials

    def dial(self, credentials: Credentials, *, shows: str = "", timeout_s: float = PATIENCE_S) -> Link:
        """Dial with credentials, and over TLS with the certificate of `shows`, or of the process itself."""
        shown = certificate(shows or credentials.process_id) if self.kind == "tls" else None
        return dial(self.address, credentials, NOTES, passport=Passport("here", certificate=shown), timeout_s=timeout_s)

    def raw(self) -> socket.socket:
        """A connection that says nothing yet."""
        if self.kind == "unix":
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(PATIENCE_S)
            sock.connect(self.address.path)
            return sock
        return socket.create_connection((self.address.ip, self.address.port), timeout=PATIENCE_S)

    def answers(self, link: Link, number: int = 21) -> bool:
        link.send(Note(number))
        received = link.receive()
        return received is not None and received.message.number == 2 * number


@contextlib.contextmanager
def serving(kind: str) -> Generator[Server]:
    with tempfile.TemporaryDirectory() as folder, running_loop() as loop:
        server = Server(loop, kind, folder)
        try:
            yield server
        finally:
            on_loop(loop, server.listener.close)
