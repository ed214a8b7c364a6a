"""Routes between processes that cannot reach each other; the launcher knows all hosts, so it chooses them.

    both can dial:           a ──▶ relay of a third agent (or of the launcher) ◀── b
    launcher dials agents:   a ─▶ its agent's relay ◀── launcher ──▶ b's agent's relay ◀─ b
    to the launcher itself:  a ─▶ its agent's relay ◀── launcher

Only connections are joined here. Their bytes are TLS from end to end, or travel in the engine's own connection.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ropewalk.errors import EngineError, LinkClosed, TransportError, TransportRefused
from ropewalk.processes.agent_record import AgentRecord
from ropewalk.processes.fleet import Fleet
from ropewalk.processes.messages import MeetAt, NeedWay, NoWay, OpenRelay, RelayAt
from ropewalk.transport.address import HostAddress, parse_address
from ropewalk.transport.credentials import LAUNCHER
from ropewalk.transport.host_listener import HostListener
from ropewalk.transport.joining import Socket, new_ticket
from ropewalk.transport.loop import Loop
from ropewalk.transport.relay import Relay

logger = logging.getLogger(__name__)

_MEET_S = 15.0
_AGAIN_S = 0.05
"""Delay before a retry, in seconds: a relay may not have been told yet of a ticket that it is shown."""
_RELAY_S = 3.0
"""Timeout in seconds: a relay at which two sides were not joined by then is one that not both of them reach."""


@dataclass(frozen=True, slots=True)
class RelayRoute:
    """A pair of hosts without a direct connection, and the relay between them; each by the name that the user knows."""

    source: str
    target: str
    through: str

    def __str__(self) -> str:
        return f"{self.source} reaches {self.target} only through {self.through}"


@dataclass(slots=True)
class _RelayHost:
    """The relay to which connections from one host to another are sent."""

    relay: AgentRecord | None
    """None is the launcher."""
    works: bool = False
    """Whether two sides have been joined there."""
    failed: bool = False
    """Whether the last two were not: others are sent elsewhere."""


class RelayRouter:
    """Connects processes of different hosts; everything is called on the loop's thread.

    Args:
        fleet: the hosts.
        loop: loop of the session.
        listener: listener of the launcher itself.
        ip: the launcher's own address for others; empty if it has none.
        tell: called once with each pair of hosts that needs a relay.
    """

    def __init__(
        self, fleet: Fleet, loop: Loop, listener: HostListener, ip: str, tell: Callable[[str], object]
    ) -> None:
        self._fleet = fleet
        self._loop = loop
        self._listener = listener
        self._ip = ip
        self._tell_people = tell
        self._board: Relay | None = None
        self._tcp: tuple[str, int] | None = None
        self._pending: dict[str, tuple[AgentRecord, AgentRecord, str]] = {}
        self._meeting: dict[str, tuple[AgentRecord, AgentRecord, AgentRecord | None]] = {}
        """By ticket: the two sides that are connecting, and their relay."""
        self._carried: dict[str, tuple[AgentRecord, AgentRecord]] = {}
        """By ticket: the two hosts whose connections go through our own relay."""
        self._detours: dict[tuple[AgentRecord, AgentRecord], _RelayHost] = {}

    def need(self, source: AgentRecord, wish: NeedWay) -> None:
        """Handle the request of a process on a host that wants to reach an address."""
        to = parse_address(wish.to)
        if not isinstance(to, HostAddress):
            _tell(source, NoWay(wish.ticket, f"{wish.to} names no host of this run"))
        elif to.host == LAUNCHER:
            self._to_launcher(source, wish.ticket)
        else:
            target = self._fleet.agents.get(to.host)
            if target is None or target.link is None:
                _tell(source, NoWay(wish.ticket, f"the host {to.host} is gone"))
            elif source.dialled and target.dialled:
                self._through_launcher(source, target, wish)
            else:
                self._through_relay(source, target, wish)

    def reach(self, to: HostAddress, timeout_s: float) -> Socket:
        """Return a connection from the launcher itself to a process that it cannot dial; in a thread that may block.

        Raises:
            TransportError, EngineError, OSError: there is no route.
        """
        target = self._fleet.agents.get(to.host)
        if target is None or target.link is None:
            raise LinkClosed(f"the host {to.host} is gone")
        ticket = new_ticket()
        if target.dialled:
            _tell(target, MeetAt(ticket, "", 0, str(to)))
            return self._come(target, ticket, timeout_s)
        come: queue.SimpleQueue[Socket] = queue.SimpleQueue()

        def invite() -> None:
            board, (ip, port) = self._board_at()
            board.claim(ticket, come.put, timeout_s)
            _tell(target, MeetAt(ticket, ip, port, str(to)))

        self._loop.call_soon(invite)
        try:
            return come.get(timeout=timeout_s)
        except queue.Empty:
            self._loop.call_later(_AGAIN_S, lambda: [come.get().close() for _ in range(come.qsize())])  # it came late
            raise LinkClosed(f"{target.label} did not come to the launcher's relay in {timeout_s:g} s") from None

    def relay_at(self, relay: AgentRecord | None, place: RelayAt) -> None:
        """Handle the answer of an agent, or the launcher, whose relay is ready for two sides."""
        _, _, asked = self._meeting.get(place.ticket, (None, None, None))
        if asked is not relay:
            return  # that agent was not asked, and would choose the relay itself
        source, target, to = self._pending.pop(place.ticket, (None, None, ""))
        if source and target:
            _tell(source, MeetAt(place.ticket, place.ip, place.port, ""))
            _tell(target, MeetAt(place.ticket, place.ip, place.port, to))

    def lost(self, agent: AgentRecord) -> None:
        """Handle the loss of an agent.

        No process connects from there or to there any more, not even with an earlier ticket.
        """
        for ticket, parties in [*self._meeting.items(), *self._carried.items()]:
            if agent in parties:
                self._meeting.pop(ticket, None)
                self._pending.pop(ticket, None)
                self._carried.pop(ticket, None)
                if self._board:
                    self._board.withdraw(ticket)
        for pair in [pair for pair in self._detours if agent in pair]:
            del self._detours[pair]

    def known(self) -> list[RelayRoute]:
        """Return the relayed pairs of hosts that are up; from any thread."""
        detours = [(*pair, detour) for pair, detour in list(self._detours.items()) if detour.works]
        return [_way(source, target, detour.relay) for source, target, detour in detours if source.link and target.link]

    def met(self, agent: AgentRecord | None, ticket: str) -> None:
        """Note that two sides were joined at their relay, as its agent or our own relay reports."""
        if agent and agent not in self._meeting.get(ticket, ()):
            return
        source, target, relay = self._meeting.pop(ticket, (None, None, None))
        detour = self._detours.get((source, target)) if source and target else None
        if source and target and agent is None and self._board:
            joined = self._board.joined()
            self._carried = {each: pair for each, pair in self._carried.items() if each in joined}
            self._carried[ticket] = source, target
        if source and target and detour and detour.relay is relay and not detour.works:
            detour.works, detour.failed = True, False
            if not (source.dialled and target.dialled):  # else the user was told when these came up
                self._tell_people(str(_way(source, target, relay)))

    def close(self) -> None:
        """End the connections that go through this process."""
        if self._board:
            self._board.close()

    def forget(self) -> None:
        """In a forked child: close our copies of the sockets and nothing else."""
        if self._board:
            self._board.forget()

    def _to_launcher(self, source: AgentRecord, ticket: str) -> None:
        if not source.dialled:
            _tell(source, NoWay(ticket, "the launcher is reached directly from there, or not at all"))
            return
        _tell(source, MeetAt(ticket, "", 0, ""))
        self._fetch([(source, ticket)], lambda sides: self._listener.adopt(sides[0]))

    def _through_launcher(self, source: AgentRecord, target: AgentRecord, wish: NeedWay) -> None:
        second = new_ticket()
        _tell(source, MeetAt(wish.ticket, "", 0, ""))
        _tell(target, MeetAt(second, "", 0, wish.to))

        def splice(sides: list[Socket]) -> None:
            board = self._own_board()
            board.expect(wish.ticket, _MEET_S)
            for side in sides:
                board.bring(wish.ticket, side)

        self._detours.setdefault((source, target), _RelayHost(None))
        self._expect(wish.ticket, source, target, None)
        self._fetch([(source, wish.ticket), (target, second)], splice)

    def _through_relay(self, source: AgentRecord, target: AgentRecord, wish: NeedWay) -> None:
        relays = [agent for agent in list(self._fleet.agents.values()) if agent.up and agent.ip]
        relays = [agent for agent in relays if agent not in (source, target)]
        places: list[AgentRecord | None] = [*relays, None] if self._ip else [*relays]
        if not places:
            _tell(source, NoWay(wish.ticket, f"no host of this run reaches both {source.label} and {target.label}"))
            return
        relay = self._choose(source, target, places)
        self._pending[wish.ticket] = source, target, wish.to
        self._expect(wish.ticket, source, target, relay)
        if relay:
            _tell(relay, OpenRelay(wish.ticket))
        else:
            board, place = self._board_at()
            board.expect(wish.ticket, _MEET_S)
            self.relay_at(None, RelayAt(wish.ticket, *place))

    def _choose(self, source: AgentRecord, target: AgentRecord, places: list[AgentRecord | None]) -> AgentRecord | None:
        """Choose the same relay as long as it works: only trying shows which hosts can reach each other."""
        detour = self._detours.get((source, target))
        if detour is None or detour.relay not in places:
            detour = _RelayHost(places[0])
        elif detour.failed:
            detour = _RelayHost(places[(places.index(detour.relay) + 1) % len(places)])
        self._detours[source, target] = detour
        return detour.relay

    def _expect(self, ticket: str, source: AgentRecord, target: AgentRecord, relay: AgentRecord | None) -> None:
        self._meeting[ticket] = source, target, relay
        self._loop.call_later(_RELAY_S, lambda: self._unmet(ticket))

    def _unmet(self, ticket: str) -> None:
        source, target, relay = self._meeting.pop(ticket, (None, None, None))
        if source is None or target is None:
            return  # they were joined
        if self._pending.pop(ticket, None):
            _tell(source, NoWay(ticket, f"{relay.label if relay else 'the launcher'} does not answer"))
        detour = self._detours.get((source, target))
        if detour and detour.relay is relay:
            detour.works, detour.failed = False, True

    def _fetch(self, sides: list[tuple[AgentRecord, str]], then: Callable[[list[Socket]], object]) -> None:
        """Connect to the relays of agents that must be dialled, in a thread."""

        def fetch() -> None:
            reached: list[Socket] = []
            for agent, ticket in sides:
                try:
                    reached.append(self._come(agent, ticket))
                except (TransportError, EngineError, OSError) as error:
                    # The process that asked has its own error for it, or has gone meanwhile.
                    logger.info("no connection through %s: %s", agent.label, error)
                    for sock in reached:
                        sock.close()
                    return
            self._loop.call_soon(lambda: then(reached))

        threading.Thread(target=fetch, name="ropewalk-way", daemon=True).start()

    def _come(self, agent: AgentRecord, ticket: str, timeout_s: float = _MEET_S) -> Socket:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self._fleet.reach_board(agent, ticket, deadline - time.monotonic())
            except TransportRefused:
                if time.monotonic() + _AGAIN_S > deadline:
                    raise
                time.sleep(_AGAIN_S)

    def _own_board(self) -> Relay:
        if self._board is None:
            self._board = Relay(self._loop, lambda ticket: self.met(None, ticket))
        return self._board

    def _board_at(self) -> tuple[Relay, tuple[str, int]]:
        """Return the address of our relay for other hosts."""
        board = self._own_board()
        if self._tcp is None:
            self._tcp = board.listen_tcp(self._ip)
        return board, self._tcp


def _way(source: AgentRecord, target: AgentRecord, relay: AgentRecord | None) -> RelayRoute:
    return RelayRoute(source.label, target.label, relay.label if relay else "the launcher")


def _tell(agent: AgentRecord, message: msgspec.Struct) -> None:
    if agent.link:
        agent.link.send_if_open(message)
