"""Tells hosts where services are: the services that they asked for, and every change."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import msgspec

from ropewalk.processes.messages import Retired, RetiredProcess
from ropewalk.program.directory import DirectoryView, Table
from ropewalk.program.hosting import Hosting
from ropewalk.program.instructions import ReplicaState, ReplicaStatus
from ropewalk.program.messages import NodeReady, Placed, RendezvousAt, Sizes, UnitName
from ropewalk.program.node import NodeSpec
from ropewalk.program.rank_places import rank_places
from ropewalk.program.supervisor import Supervisor
from ropewalk.program.units import UnitReplica, Units
from ropewalk.transport.tokens import token_of

LAUNCHER = "launcher"
"""Peer name of the launcher when it calls services."""


class Announcer:
    """The launcher's end of all directories; on the loop."""

    def __init__(self, units: Units, view: DirectoryView) -> None:
        self._units = units
        self._view = view  # the launcher's own view
        self._hosting: Hosting
        self._table = Table({spec.name: spec.replicas for nodes in units.nodes.values() for spec in nodes})
        # Services only: there may be thousands of workers, which cannot be called.
        self._services = {
            unit: services
            for unit, specs in units.nodes.items()
            if (services := [spec for spec in specs if spec.node.methods() is not None])
        }
        self._keys: dict[str, str] = {}
        """Keys that make the tokens for services, by address."""
        self._certificates: dict[str, str] = {}
        """Fingerprints of the certificates of processes that have one, by host."""
        self._came_up: dict[tuple[str, int], None] = {}
        """Units and indices of services that can be called since the last `publish`; a set that keeps its order."""
        self._told_end = ""
        self._told_sizes: dict[str, int] = dict(units.sizes)
        self._gone: list[RetiredProcess] = []
        self._live_services: dict[UnitName, None] = {}
        """The units with services whose hosts are up; a set that keeps its order."""
        self._subscribers: dict[str, dict[str, UnitName | None]] = {}
        """Hosts that asked for a service, by service and host; None is the launcher itself."""
        self._meetings: dict[str, RendezvousAt] = {}

    def begin(self, hosting: Hosting) -> None:
        """Set the hosting in which units run."""
        self._hosting = hosting

    def host_up(self, unit: UnitReplica) -> None:
        """The host of a unit has come up."""
        self._keys[unit.address] = self._hosting.key_of(unit.name)
        self._certificates[self._hosting.host_id(unit.name)] = self._hosting.fingerprint_of(unit.name)
        if unit.name.unit in self._services:
            self._live_services[unit.name] = None
        if unit.name.unit in self._meetings:
            self._gather(self._meetings[unit.name.unit])

    def host_gone(self, unit: UnitReplica, *, is_lost: bool = False) -> None:
        """The host of a unit is gone together with the unit; hosts that go on without the unit keep what they know.

        Args:
            unit: the unit.
            is_lost: whether its end was not observed: services then close their links to it.
        """
        if self._hosting.shares_host:
            return
        self._keys.pop(unit.address, None)
        self._live_services.pop(unit.name, None)
        host = self._hosting.host_id(unit.name)
        for hosts in self._subscribers.values():
            hosts.pop(host, None)
        if not self._gone:
            self._hosting.loop.call_soon(self._tell_who_is_gone)
        self._gone.append(RetiredProcess(host, self._certificates.pop(host, ""), is_lost))

    def _tell_who_is_gone(self) -> None:
        """Make services refuse the hosts that are gone; hosts that go at the same time are reported together."""
        news, self._gone = Retired(self._gone), []
        for name in self._live_services:
            self._hosting.tell(name, news)

    def node_ready(self, unit: UnitReplica, message: NodeReady) -> None:
        """A service can be called."""
        if message.target:
            self._table.came_up(message.node, unit.name.replica, unit.name.generation, unit.address, message.target)
            self._came_up[unit.name.unit, unit.name.replica] = None

    def subscribe(self, service: str, host: str, name: UnitName | None) -> None:
        """A host asks where a service is."""
        self._subscribers.setdefault(service, {})[host] = name
        for news in self._table.about(service):
            self._inform(host, name, news)

    def publish(self, supervisor: Supervisor) -> None:
        """Send changes to the hosts that asked for them."""
        states = [
            (spec.name, status.replica, status.state, status.generation, _why_gone(spec, status))
            for status in self._changed(supervisor)
            for spec in self._services.get(status.name, ())
        ]
        sizes: dict[str, int] = {}
        if self._told_sizes != self._units.sizes:
            self._told_sizes = dict(self._units.sizes)
            sizes = {spec.name: self._units.sizes[unit] for unit, specs in self._units.nodes.items() for spec in specs}
        for news in self._table.update(states, sizes, stopping=supervisor.why_it_ends):
            for host, name in list(self._subscribers.get(news.name, {}).items()):
                self._inform(host, name, news)

    def _changed(self, supervisor: Supervisor) -> Iterable[ReplicaStatus]:
        """The replicas whose place may be another one than at the last call."""
        changed = {(status.name, status.replica): status for status in supervisor.take_changes()}
        came_up, self._came_up = self._came_up, {}
        if self._told_end != supervisor.why_it_ends:  # it is the cause of all that have stopped
            self._told_end = supervisor.why_it_ends
            return [*changed.values(), *(one for one in supervisor.replicas if (one.name, one.replica) not in changed)]
        for unit, replica in came_up:
            status = supervisor.replica(unit, replica)
            if status:
                changed[unit, replica] = status
        return changed.values()

    def rendezvous(self, at: RendezvousAt) -> None:
        """The first rank offers a rendezvous address: send it to all ranks when all of them are there."""
        self._meetings[at.unit] = at
        self._gather(at)

    def _gather(self, at: RendezvousAt) -> None:
        units = [unit for unit in self._units if (unit.name.unit, unit.name.generation) == (at.unit, at.generation)]
        ranks = sorted((unit for unit in units if unit.address), key=lambda unit: unit.name.replica)
        if len(ranks) < self._units.sizes[at.unit]:
            return
        one_gpu = self._units.resources(at.unit).gpus == 1
        places = rank_places(
            [self._hosting.host_of(unit.name) for unit in ranks], [unit.gpus if one_gpu else "" for unit in ranks]
        )
        rule = self._units.nodes[at.unit][0].restart
        max_restarts = 0 if rule.policy == "never" else rule.max_restarts
        for unit, place in zip(ranks, places, strict=True):
            told = msgspec.structs.replace(at, max_restarts=max_restarts, **dataclasses.asdict(place))
            self._hosting.tell(unit.name, told)

    def _inform(self, host: str, name: UnitName | None, news: Placed | Sizes) -> None:
        if isinstance(news, Placed) and news.address:
            key = self._keys.get(news.address)
            if key is None:
                return  # its host has just gone, and the next update says so
            if name is None:
                passport = self._hosting.passport
                certificate = passport.certificate.fingerprint if passport and passport.certificate else ""
            else:
                certificate = self._certificates.get(host, "")
            news = msgspec.structs.replace(news, token=token_of(key, host, certificate))
        if name is None:
            self._view.hear(news)
        else:
            self._hosting.tell(name, news)


def _why_gone(spec: NodeSpec, status: ReplicaStatus) -> str:
    """The cause of a replica's end, or of its last end, for its callers."""
    if status.state is not ReplicaState.COMPLETED:
        return f"it {status.cause}" if status.cause and not status.healed else ""
    if spec.node.finite:
        return "it has completed"
    return f"it shared the process {status.name!r} with workers, which have completed, and ended with them"
