"""Listening for processes of the same host and, in a run of several hosts, for all others of the run.

same host ────unix socket──┐
other hosts ──TLS port─────┼──▶ greeting ──▶ the link is up
through agents ──adopt─────┘
"""

from __future__ import annotations

import socket

from ropewalk.transport.address import Address, HostAddress
from ropewalk.transport.credentials import AllowList
from ropewalk.transport.link import Codec
from ropewalk.transport.loop import Loop
from ropewalk.transport.passport import Passport
from ropewalk.transport.server import Listener, OnLink, UnixListener


class HostListener:
    """A unix socket for processes of this host, and a TLS port if this host has an address."""

    def __init__(
        self,
        loop: Loop,
        path: str,
        passport: Passport | None,
        run_id: str,
        members: AllowList,
        codec: Codec,
        on_link: OnLink,
    ) -> None:
        """Bind and listen; call `open` from the loop's thread to start accepting.

        Args:
            loop: serves the handshakes.
            path: path of the unix socket.
            passport: passport of this process; None in a run of one host.
            run_id: the run that diallers have to belong to.
            members: the processes that may connect.
            codec: the first protocol of new links.
            on_link: called with each new link.

        Raises:
            OSError: the path or the address cannot be bound.
            SettingsError: the address means every network of this host.
        """
        unix = UnixListener(loop, path, run_id, members, codec, on_link)
        self._listeners: list[Listener] = [unix]
        self.address: Address = unix.address
        if passport is None:
            return
        self.address = HostAddress(passport.host, unix.address)
        if passport.ip and passport.certificate:
            from ropewalk.transport.tls_server import TlsListener  # only a run of several hosts loads `ssl`

            try:
                tls = TlsListener(loop, passport.ip, 0, passport.certificate, run_id, members, codec, on_link)
            except BaseException:
                unix.close()
                raise
            self._listeners.append(tls)
            self.address = HostAddress(passport.host, unix.address, tls.address)

    @property
    def num_refused(self) -> int:
        """How many connections were refused."""
        return sum(listener.num_refused for listener in self._listeners)

    def open(self) -> None:
        """Start accepting; from the loop's thread."""
        for listener in self._listeners:
            listener.open()

    def adopt(self, sock: socket.socket) -> None:
        """Take a connection that came through agents; from the loop's thread.

        It speaks TLS if this process has a TLS port.
        """
        self._listeners[-1].adopt(sock)

    def close(self) -> None:
        """Stop accepting; existing links stay up. From the loop's thread, may be called twice."""
        for listener in self._listeners:
            listener.close()

    def forget(self) -> None:
        """In a forked child: close our copies of the sockets and nothing else."""
        for listener in self._listeners:
            listener.forget()
