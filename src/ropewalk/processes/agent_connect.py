"""How an agent and a launcher on different hosts connect, and how their processes do.

    dials back:    agent ──TLS──▶ launcher
    is dialled:    agent: a relay at its own address, or the engine's connection ◀── launcher

An agent that cannot reach the launcher prints where it waits; the launcher reads that in the log of its job. Processes
that cannot reach each other connect through a relay, too: `relay_routing.py` decides through which.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import msgspec

from ropewalk.errors import LinkClosed, TransportError, TransportRefused
from ropewalk.processes.agent_words import say
from ropewalk.processes.messages import CONTROL, AgentBoot, MeetAt, Met, NeedWay, NoWay, OpenRelay, RelayAt
from ropewalk.processes.relay_client import BOARD
from ropewalk.transport.address import HostAddress, parse_address
from ropewalk.transport.client import connect_to_neighbour, dial
from ropewalk.transport.credentials import LAUNCHER, AllowList, Credentials
from ropewalk.transport.joining import Socket, join
from ropewalk.transport.link import Link, Received
from ropewalk.transport.loop import Loop
from ropewalk.transport.passport import Passport
from ropewalk.transport.relay import Relay
from ropewalk.transport.server import Listener, UnixListener

_DIAL_S = 4.0
"""Timeout of dialling the launcher, in seconds; a firewall that drops packets answers nothing."""
_WAIT_S = 30.0
"""An agent that waits to be dialled ends after this many seconds without a connection."""
_MEET_S = 15.0
"""Timeout within which both sides must come to a relay, in seconds."""


class AgentConnector:
    """The agent's side of connecting to its launcher, and of connecting processes of this host to others.

    Args:
        boot: boot configuration of the agent.
        loop: loop of the agent; its thread calls everything here.
        folder: folder for sockets.
        door: path at which to listen for the launcher, in a folder that the engine has made; "" if the engine carries
            no connections.
        on_met: called with the control link.
    """

    def __init__(self, boot: AgentBoot, loop: Loop, folder: str, door: str, on_met: Callable[[Link], None]) -> None:
        self._boot = boot
        self._loop = loop
        self._folder = folder
        self._door = door
        self._on_met = on_met
        self._certificate = boot.certificate.unpacked() if boot.certificate else None
        self._board: Relay | None = None
        self._tcp: tuple[str, int] | None = None
        self._listener: Listener | None = None
        self._asked: dict[str, Link] = {}
        self.launcher: Link | None = None
        self.ip = ""
        """The address at which other hosts reach this one; empty if only the launcher does, through the engine."""
        self.dialled = False
        self.actions: dict[type, Callable[[Link, Received], None]] = {
            NeedWay: lambda link, received: self._need_way(link, received.message),
            OpenRelay: lambda link, received: self._open_relay(received.message.ticket),
            MeetAt: lambda link, received: self._meet_at(received.message),
            NoWay: lambda link, received: self._answer(received.message),
        }

    def begin(self) -> None:
        """Connect to the launcher: dial it, or wait for it.

        Raises:
            TransportRefused: the launcher answered and does not accept us.
        """
        launcher = parse_address(self._boot.address)
        assert isinstance(launcher, HostAddress)
        if self._door:
            self._wait_to_be_dialled("")
            return
        from ropewalk.transport.interfaces import local_ips, source_ip_towards  # only a run of several hosts imports it

        assert launcher.tls
        try:
            self.ip = source_ip_towards(launcher.tls.ip)
        except OSError:  # no route: the launcher may have one in the other direction
            self.ip = next(iter(local_ips()), "127.0.0.1")
        credentials = Credentials(self._boot.run_id, self._boot.agent_id, self._boot.secret)
        passport = Passport(self._boot.agent_id, self.ip, self._certificate)
        try:
            link = dial(launcher.tls, credentials, CONTROL, passport=passport, timeout_s=_DIAL_S)
        except TransportRefused:
            raise
        except LinkClosed as error:
            from ropewalk.transport.probe import unreached

            obstacle = unreached(launcher.tls.ip, launcher.tls.port, error, _DIAL_S)
            self._wait_to_be_dialled(obstacle.explain(f"{os.uname().nodename} ({self.ip})", "the launcher"))
        else:
            self._on_met(link)

    def _wait_to_be_dialled(self, why: str) -> None:
        self.dialled = True
        members = AllowList()
        members.admit(LAUNCHER, self._boot.launcher_secret, self._boot.launcher_fingerprint or None)
        board = self._open_board()
        if self._door:
            self._listener = UnixListener(
                self._loop, os.path.join(self._folder, "adopt.sock"), self._boot.run_id, members, CONTROL, self._linked
            )
        else:
            from ropewalk.transport.tls_server import TlsListener

            assert self._certificate
            self._listener = TlsListener(
                self._loop, self.ip, None, self._certificate, self._boot.run_id, members, CONTROL, self._linked
            )
        board.claim(self._boot.launcher_ticket, self._listener.adopt)
        if not self._door:
            ip, port = self._board_at()
            shown = f"[{ip}]" if ":" in ip else ip
            print(f"ropewalk-agent listens at {shown}:{port}; {why}", flush=True)
        self._loop.call_later(_WAIT_S, self._give_up)

    def _give_up(self) -> None:
        if self.launcher is None:
            say(f"the launcher did not come within {_WAIT_S:.0f} s; this agent ends")
            self._loop.stop()

    def _linked(self, _who: str, link: Link) -> None:
        self._on_met(link)

    # Processes

    def _open_board(self) -> Relay:
        if self._board is None:
            self._board = Relay(self._loop, lambda ticket: self._tell(Met(ticket)))
            self._board.listen_unix(os.path.join(self._folder, BOARD))
            if self._door:
                self._board.listen_unix(self._door)
        return self._board

    def _board_at(self) -> tuple[str, int]:
        """Return where other hosts reach the relay; it listens there from now on."""
        board = self._open_board()
        if self._tcp is None:
            self._tcp = board.listen_tcp(self.ip)
        return self._tcp

    def _need_way(self, link: Link, wish: NeedWay) -> None:
        """Ask the launcher for a route for a process of ours that cannot reach another host."""
        if self._asked.setdefault(wish.ticket, link) is not link:
            return  # the ticket of another process
        if self.dialled:
            self._open_board().expect(wish.ticket, _MEET_S)
        self._tell(wish)

    def _answer(self, answer: MeetAt | NoWay) -> None:
        link = self._asked.pop(answer.ticket, None)
        if link:
            link.send_if_open(answer)

    def _open_relay(self, ticket: str) -> None:
        ip, port = self._board_at()
        self._open_board().expect(ticket, _MEET_S)
        self._tell(RelayAt(ticket, ip, port))

    def _meet_at(self, place: MeetAt) -> None:
        if not place.target:
            self._answer(place)
            return
        target = parse_address(place.target)
        if not isinstance(target, HostAddress) or not self._is_ours(target):
            say(f"another host asked for {place.target!r}, which is not a process of the run here")
            return
        board = self._open_board()
        board.expect(place.ticket, _MEET_S)

        def fetch() -> None:
            """Run in a thread, because other hosts may be slow."""
            sides: list[Socket] = []
            try:
                sides.append(connect_to_neighbour(target))
                if place.ip:
                    sides.append(join((place.ip, place.port), place.ticket, _MEET_S))
            except (TransportError, OSError) as error:
                say(f"a process of another host was not brought to {place.target}: {error}")
                for side in sides:
                    side.close()
                return
            self._loop.call_soon(lambda: [board.bring(place.ticket, side) for side in sides])

        threading.Thread(target=fetch, name="rw-meet", daemon=True).start()

    def _is_ours(self, target: HostAddress) -> bool:
        """Return whether an address from another host can be that of a process of ours, and of nothing else."""
        is_in_folder = os.path.dirname(target.unix.path) == self._folder
        return is_in_folder and (target.tls is None or target.tls.ip == self.ip)

    def _tell(self, message: msgspec.Struct) -> None:
        if self.launcher:
            self.launcher.send_if_open(message)

    def close(self) -> None:
        """End all splices; the folder is removed with the agent."""
        if self._board:
            self._board.close()
