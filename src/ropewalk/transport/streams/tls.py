"""TLS streams: TCP between two hosts, mutual TLS 1.3 with the certificates of one run.

TLS works on memory buffers here and the socket is separate, so that no lock is held while a thread waits for the
network:

        send ──(1)── encrypt ──> outgoing ──(2)── waiting ──(3)──> socket
                                    ^                                 │
                            answers │                                 │
        receive_into <────────── decrypt <── incoming <──(4)── recv ──┘

`_crypto` is held for (1), for decrypting, and for taking bytes out of `outgoing`
(2): cryptography and copies in memory, nothing else. Ciphertext has numbered
records, so the order in which it leaves `outgoing` must be the order on the wire
although both the sender and the receiver (whose reads can ask for an answer) push
it: `_wire` is held from (2) to the end of (3), and (3) never blocks. A thread takes
`_wire` before `_crypto`, never the other way. Waiting for the peer happens in `recv`
(4) or in the caller's `poll`, with no lock held.

An end of file without a TLS close_notify counts as an ordinary end, because frames contain their length and a
truncation is noticed there; for the same reason `close` sends no close_notify. Only a run that has a second host
imports this module.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from ropewalk.errors import LinkClosed, TransportRefused
from ropewalk.transport.credentials import ProcessCertificate
from ropewalk.transport.kernel import memory_file
from ropewalk.transport.streams.stream import TURN_BYTES, Stream

SLICE_BYTES = 128 << 10
"""Plaintext bytes that are encrypted at once, and so about the most ciphertext that ever waits for the socket."""
READ_BYTES = 64 << 10
"""Ciphertext bytes that are read at once."""
_FEW_WORDS_BYTES = 32 << 10
"""Bytes that are read and dropped before closing; less than the smallest window, so that no peer that has filled it
waits."""
_RECORD_BYTES = 16 << 10
"""Plaintext bytes of a full TLS record; buffers that fit into one together are encrypted together."""
_LINGER_S = 0.5
"""How long a side that refuses waits for the other to hang up, in seconds. If we close while bytes of the peer are
still unread, the kernel resets the connection and the peer may never read why it was refused."""
_KEEPALIVE = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 4}
"""A host that vanishes is noticed after about 60 + 4 * 15 s if no data is in transit to it; the process's lease usually
ends before. TCP_USER_TIMEOUT would cover data in transit, but since Linux 5.11 it also ends a connection to a
healthy peer that answers, and only has not read for that time because it computes."""
_GONE = (BrokenPipeError, ConnectionResetError, ConnectionAbortedError)
_YES, _NO = b"\x01", b"\x00"

_Result = TypeVar("_Result")


def server_context(certificate: ProcessCertificate) -> ssl.SSLContext:
    """Return the context of the accepting side: TLS 1.3 only, to peers with a certificate of the same run only."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, certificate)
    context.num_tickets = 0  # a resumed session would let in a peer whose certificate was not checked
    return context


def client_context(certificate: ProcessCertificate) -> ssl.SSLContext:
    """Return the context of the dialling side: TLS 1.3 only, to peers with a certificate of the same run only."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, certificate)


class TlsStream(Stream):
    """A connected TCP socket that speaks mutual TLS 1.3; `handshake` comes before everything else.

    A record is decrypted whole, so bytes may be here that `poll` does not see: read until `BlockingIOError` before
    waiting for the descriptor.

    With AES-GCM a key should be used for at most 2^24.5 records (RFC 8446 section 5.5), about 390 GB in one direction,
    and Python's ssl cannot ask for a new one; a link that carries more should be dialled anew.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> None:
        """Take over a connected socket. Nothing is sent.

        Args:
            sock: connected; the stream owns it from now on. TCP, or a unix socket that leads to another host.
            context: from `server_context` or `client_context`.
            server_side: whether this side accepted the connection.
        """
        sock.setblocking(True)  # a wait costs one system call then; MSG_DONTWAIT avoids waiting
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE.items():
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        self._sock = sock
        self._peer = _name_of_peer(sock)
        self._closed = False
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._crypto = threading.Lock()
        self._wire = threading.Lock()
        self._waiting = memoryview(b"")  # ciphertext that left `_outgoing` and has not reached the socket; under _wire
        self._failure: ssl.SSLError | None = None  # in the receiving thread: nothing can be decrypted any more
        self._arrived = memoryview(bytearray(READ_BYTES))  # used by the one receiving thread
        self.peer_fingerprint = ""
        """SHA-256 of the peer's certificate in DER form, 64 hexadecimal digits; empty before the handshake."""

    def handshake(self, deadline_s: float, accept: Callable[[str], bool]) -> None:
        """Authenticate both sides, and wait until both have accepted each other.

        TLS 1.3 lets a client go ahead before the server has checked its certificate; here both sides then say yes or no
        in one more byte, so that a refusal is always reported here, with its reason, and never by a later read.

        Args:
            deadline_s: seconds for all of it, however slowly the peer sends.
            accept: called with the fingerprint of the peer's certificate, which is valid and of this run; False
                refuses. Here a retired process is refused, or a member that took the port of another.

        Raises:
            TransportRefused: one side does not accept the other, the peer does not speak TLS, or time is up. The stream
                is closed then.
            LinkClosed: the stream was closed by another thread.
        """
        deadline = time.monotonic() + deadline_s
        try:
            self._shake_hands(deadline, accept)
        except ssl.SSLError as error:
            self._take_leave(deadline)
            raise TransportRefused(self._explain(error)) from error
        except TimeoutError as error:
            raise TransportRefused(
                f"{self._peer} did not finish the TLS handshake within {deadline_s:.2g} s; "
                "it is overloaded, it is not a Ropewalk process, or the network loses large packets (is the MTU of "
                "both hosts and of the way between them the same?)"
            ) from error
        except LinkClosed:
            if self._closed:
                raise
            raise TransportRefused(
                f"{self._peer} hung up during the TLS handshake; it does not speak TLS, or it is shutting down"
            ) from None
        finally:
            if not self.peer_fingerprint:
                self.close()

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, buffers: Sequence[memoryview], fds: Sequence[int] = ()) -> int:
        if fds:
            raise ValueError(f"{len(fds)} file descriptors cannot travel to another host; send their content")
        left = [buffer for buffer in buffers if buffer.nbytes]
        taken = 0
        # The peer reads too slowly as soon as ciphertext waits here: then nothing more is encrypted.
        while self.flush() and left and taken < TURN_BYTES:
            taken += self._encrypt(left)
        return taken

    def flush(self) -> bool:
        with self._wire:
            while True:
                if not self._waiting:
                    with self._crypto:
                        self._waiting = memoryview(self._outgoing.read())
                    if not self._waiting:
                        return True
                try:
                    sent = self._sock.send(self._waiting, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                except BlockingIOError:
                    return False
                except OSError as error:
                    raise self._broken(error) from error
                self._waiting = self._waiting[sent:]

    def receive_into(self, buffer: memoryview, *, wait: bool) -> int:
        arrived = 0
        while True:
            count, answers = self._decrypt(self._arrived[:arrived], buffer)
            if answers:
                with contextlib.suppress(LinkClosed):  # the bytes that were read count; the next read reports the error
                    self.flush()
            if count is not None:
                return count
            if self._failure:
                raise LinkClosed(f"TLS with {self._peer} failed: {_reason(self._failure)}") from self._failure
            try:
                arrived = self._sock.recv_into(self._arrived, 0, 0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                raise
            except _GONE:
                arrived = 0
            except OSError as error:
                raise self._broken(error) from error
            if arrived == 0:
                return 0

    def close_copy(self) -> None:
        self._sock.close()

    def close(self) -> None:
        self._closed = True
        # A thread that waits in `recv` is woken by shutdown only, not by close.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
            # With unread bytes, the kernel resets the connection, and our last message is lost on its way. A few bytes
            # can be read away; if there are more, the peer is still sending, and must not go on waiting.
            self._sock.recv(_FEW_WORDS_BYTES, socket.MSG_DONTWAIT)
        self._sock.close()

    def _encrypt(self, left: list[memoryview]) -> int:
        """Encrypt the next slice of `left`, and remove it from there; returns its length."""
        taken = 0
        with self._crypto:
            while left and taken < SLICE_BYTES:
                if len(left) > 1 and sum(buffer.nbytes for buffer in left[:16]) <= _RECORD_BYTES:
                    left[:16] = [memoryview(b"".join(left[:16]))]  # a header and a small body: one record
                try:
                    count = self._tls.write(left[0][: SLICE_BYTES - taken])
                except ssl.SSLError as error:
                    raise LinkClosed(f"TLS with {self._peer} failed: {_reason(error)}") from error
                taken += count
                left[0] = left[0][count:]
                if not left[0]:
                    del left[0]
        return taken

    def _decrypt(self, arrived: memoryview, buffer: memoryview) -> tuple[int | None, bool]:
        """Add received bytes and decrypt into `buffer`.

        Returns:
            How many bytes were decrypted, 0 if the peer sent close_notify, None if there are none; and whether
            something must be sent now, such as an alert.
        """
        count = 0
        with self._crypto:
            if arrived:
                self._incoming.write(arrived)
            try:
                # Each read ends with a record. Asking for one when none is here would cost an exception.
                while count < buffer.nbytes and not self._failure and (self._tls.pending() or self._incoming.pending):
                    got = _read_into(self._tls, buffer[count:])
                    if got == 0:
                        return count, self._outgoing.pending > 0
                    count += got
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                self._failure = error  # bytes that were complete before are returned first
            return count or None, self._outgoing.pending > 0

    def _shake_hands(self, deadline: float, accept: Callable[[str], bool]) -> None:
        self._step(self._tls.do_handshake, deadline)
        fingerprint = hashlib.sha256(self._tls.getpeercert(binary_form=True) or b"").hexdigest()
        accepted = accept(fingerprint)
        self._step(lambda: self._tls.write(_YES if accepted else _NO), deadline)
        if not accepted:
            self._take_leave(deadline)
            raise TransportRefused(
                f"{self._peer} has a certificate of this run, but {fingerprint[:16]}... is not admitted here; "
                "its process was retired, or is not the one that was meant"
            )
        if self._step(lambda: self._tls.read(1), deadline) != _YES:
            raise TransportRefused(
                f"{self._peer} does not admit this process; it was retired, or another process was expected"
            )
        self.peer_fingerprint = fingerprint

    def _step(self, step: Callable[[], _Result], deadline: float) -> _Result:
        """Do one step of the handshake, with as much sending and receiving as it needs."""
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self._push(deadline)
                self._pull(deadline)
            else:
                self._push(deadline)
                return result

    def _push(self, deadline: float) -> None:
        while not self.flush():
            self._wait(select.POLLOUT, deadline)

    def _pull(self, deadline: float) -> None:
        self._wait(select.POLLIN, deadline)
        try:
            arrived = self._sock.recv(READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._broken(error) from error
        if not arrived:
            raise LinkClosed(f"{self._peer} hung up")
        self._incoming.write(arrived)

    def _wait(self, event: int, deadline: float) -> None:
        fd = self._sock.fileno()
        if fd < 0:
            raise LinkClosed("the link was closed here")
        poller = select.poll()
        poller.register(fd, event)
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError

    def _take_leave(self, deadline: float) -> None:
        """Send the final alert or refusal, and wait a moment for the peer to hang up."""
        deadline = min(deadline, time.monotonic() + _LINGER_S)
        with contextlib.suppress(LinkClosed, OSError):
            self._push(deadline)
            self._sock.shutdown(socket.SHUT_WR)
            while True:
                self._pull(deadline)
                self._incoming.read()

    def _broken(self, error: OSError) -> LinkClosed:
        if self._closed:
            return LinkClosed("the link was closed here")
        return LinkClosed(f"the connection to {self._peer} broke: {error.strerror or error}")

    def _explain(self, error: ssl.SSLError) -> str:
        """Explain a failed handshake, and which side to change."""
        if isinstance(error, ssl.SSLCertVerificationError):
            if "expired" in error.verify_message or "not yet valid" in error.verify_message:
                here = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
                return (
                    f"{self._peer} has a certificate out of its time ({error.verify_message}); compare the clocks: "
                    f"that of this host says {here}"
                )
            return (
                f"{self._peer} has a certificate that is not of this run ({error.verify_message}); "
                "start it with the credentials of this run"
            )
        reason = _reason(error)
        for sign, meaning in _MEANINGS:
            if sign in reason:
                return f"{self._peer} {meaning} ({reason})"
        return f"the TLS handshake with {self._peer} failed ({reason}); it is not a Ropewalk process of this run"


_MEANINGS = (
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "showed no certificate; start it with the credentials of this run"),
    ("PROTOCOL_VERSION", "does not speak TLS 1.3, which we require"),
    ("UNSUPPORTED_PROTOCOL", "does not speak TLS 1.3, which we require"),
    ("ALERT_CERTIFICATE_EXPIRED", "finds that our certificate has expired; compare the clocks"),
    ("ALERT_CERTIFICATE_REQUIRED", "asks for a certificate and we have none"),
    ("ALERT", "refuses our certificate; one of the two belongs to another run"),
    ("HTTP_REQUEST", "speaks plain HTTP, not TLS; it is not a Ropewalk process"),
    ("WRONG_VERSION_NUMBER", "does not speak TLS; it is not a Ropewalk process"),
)
"""Parts of OpenSSL's reasons, and what they mean about the peer; the first match counts."""


def _context(protocol: Any, certificate: ProcessCertificate) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the fingerprint identifies the peer; host names prove nothing here
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=certificate.ca_pem)
    # Python's ssl reads keys from files only. A file without a name never reaches a disk and needs no removal.
    pem = (certificate.cert_pem + certificate.key_pem).encode()
    with os.fdopen(memory_file("certificate"), "wb") as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context


def _read_into(tls: ssl.SSLObject, buffer: memoryview) -> int:
    # typeshed does not know that any writable buffer is accepted, nor that the count is returned then
    return cast(int, tls.read(buffer.nbytes, cast(Any, buffer)))


def _reason(error: ssl.SSLError) -> str:
    return error.reason or error.strerror or str(error)


def _name_of_peer(sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        return "a peer behind a relay"
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return "a peer that has gone"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
