"""Listening for other hosts: TLS first, then the greeting of every link.

    accept (loop) ─▶ TLS handshake (a short-lived thread) ─▶ greeting (loop) ─▶ the link is up (loop)

A TLS handshake waits for a peer that may be slow on purpose, and takes about a millisecond of cryptography; so each has
a thread of its own, which ends with the deadline or when the connection is crowded out. Only a run that has a second
host imports this module.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading

from ropewalk.errors import LinkClosed, TransportRefused
from ropewalk.transport import server
from ropewalk.transport.address import TlsAddress
from ropewalk.transport.credentials import AllowList, ProcessCertificate
from ropewalk.transport.handshake import Ends
from ropewalk.transport.interfaces import listen_on
from ropewalk.transport.link import Codec
from ropewalk.transport.loop import Loop
from ropewalk.transport.server import BACKLOG, Listener, OnLink, Stranger
from ropewalk.transport.streams.tls import TlsStream, server_context

logger = logging.getLogger(__name__)


class TlsListener(Listener):
    """Accepts members of a run from other hosts, each with the certificate and the secret of its process."""

    def __init__(
        self,
        loop: Loop,
        ip: str,
        port: int | None,
        certificate: ProcessCertificate,
        run_id: str,
        members: AllowList,
        codec: Codec,
        on_link: OnLink,
    ) -> None:
        """Bind and listen; call `open` from the loop's thread to start accepting.

        Args:
            loop: the loop that serves the handshakes.
            ip: one address of this host, never a wildcard.
            port: 0 chooses a free one; see `address`. None listens nowhere, and serves adopted connections only.
            certificate: certificate of this process.
            run_id: the run that diallers have to belong to.
            members: the processes that may connect, with secrets and fingerprints.
            codec: the first protocol of new links.
            on_link: called with each new link.

        Raises:
            SettingsError: the address means "every network that this host is on".
            OSError: the address cannot be bound.
        """
        self._context = server_context(certificate)
        self._fingerprint = certificate.fingerprint
        self.address: TlsAddress | None = None
        if port is None:
            sock = socket.socket()
            sock.close()
        else:
            sock = listen_on(ip, port, backlog=BACKLOG)
            self.address = TlsAddress(str(ipaddress.ip_address(ip)), sock.getsockname()[1], certificate.fingerprint)
        super().__init__(loop, sock, run_id, members, codec, on_link)

    def adopt(self, sock: socket.socket) -> None:
        self._meet(sock, ("another host", 0))

    def _meet(self, sock: socket.socket, address: tuple[str, int]) -> None:
        try:
            stream = TlsStream(sock, self._context, server_side=True)
        except OSError:  # the peer left at once
            sock.close()
            return
        stranger = self._admit(stream, address[0])
        thread = threading.Thread(
            target=self._shake_hands, args=(stranger, stream), name="ropewalk-tls-handshake", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no more threads: as with descriptors, waiting connections are served first
            self._drop(stranger)

    def _shake_hands(self, stranger: Stranger, stream: TlsStream) -> None:
        """Perform the handshake, in a thread of its own; the loop may close the stream meanwhile."""
        try:
            stream.handshake(server.HANDSHAKE_S, lambda found: self._members.check_fingerprint(found) is not None)
        except (TransportRefused, LinkClosed) as error:
            logger.debug("a connection from %s was refused: %s", stranger.source, error)
            self._loop.call_soon(lambda: self._drop(stranger))
        except Exception:  # an error that a stranger provokes must not keep its place; the log has it
            logger.exception("the TLS handshake with %s failed", stranger.source)
            self._loop.call_soon(lambda: self._drop(stranger))
        else:
            self._loop.call_soon(lambda: self._listen_to(stranger))

    def _ends_of(self, stranger: Stranger) -> Ends:
        assert isinstance(stranger.stream, TlsStream)
        return Ends(dialler=stranger.stream.peer_fingerprint, server=self._fingerprint)
