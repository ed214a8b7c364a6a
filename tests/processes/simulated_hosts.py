"""Hosts that fetch a blob as a `FanOut` decides, in simulated time: a fluid model of their links.

A source divides its link equally among those that it has something for; a host passes on whole pieces. Each link has
one rate in each direction. Nothing takes time but bytes, and 2 ms to pass them on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ropewalk.processes.fan_out import LAUNCHER_SOURCE, FanOut, Fetch, FetchProblem, HostRoutes

GIGABIT = 125e6
"""Bytes per second of a link of 1 Gbit/s."""
LOOK_S = 0.5
_STEP_S = 0.002


@dataclass
class SimulatedHost:
    """One host and its link."""

    rate: float = GIGABIT
    serves: bool = True
    reaches: Callable[[str], bool] = lambda _: True
    is_hung: bool = False
    """Whether it sends nothing any more, although its connections are up."""
    wants_at_s: float = 0.0
    source: str | None = None
    num_bytes: float = 0.0
    came_at_s: float | None = None
    orders: list[str] = field(default_factory=list[str])


class SimulatedHosts:
    """A launcher and some hosts.

    Args:
        hosts: the hosts by name; one that is removed while this runs is dead.
        size_bytes: of the blob.
        piece_bytes: of what a host passes on.
        launcher_rate: bytes per second of the launcher's link.
        routes: kept from one blob to the next.
    """

    def __init__(
        self,
        hosts: dict[str, SimulatedHost],
        size_bytes: int,
        *,
        piece_bytes: int = 128 << 10,
        launcher_rate: float = GIGABIT,
        routes: HostRoutes | None = None,
    ) -> None:
        self.hosts = hosts
        self.now = 0.0
        self.size_bytes = size_bytes
        self.sent_by_launcher = 0.0
        self.fan_out = FanOut(size_bytes, routes or HostRoutes(), piece_bytes=piece_bytes)
        self._piece_bytes = piece_bytes
        self._launcher_rate = launcher_rate
        self._looked_at = 0.0

    def run(self, until_s: float = 1e4) -> float:
        """Move time on until all hosts have it; returns the time of the last one."""
        while any(host.came_at_s is None for host in self.hosts.values()):
            assert self.now < until_s, f"not there after {until_s:g} s: {self.missing()}"
            self.step()
        return max((host.came_at_s or 0.0 for host in self.hosts.values()), default=0.0)

    def step(self) -> None:
        """Move time on a little."""
        for name, host in self.hosts.items():
            if host.wants_at_s <= self.now and name not in self.fan_out.hosts:
                self._obey(self.fan_out.want(name, self.now, serves=host.serves, reaches_others=True))
        self._flow()
        self.now += _STEP_S
        for name, host in self.hosts.items():
            if host.came_at_s is None and host.num_bytes >= self.size_bytes:
                host.came_at_s, host.source = self.now, None
                self._obey(self.fan_out.arrived(name, self.now))
        if self.now - self._looked_at >= LOOK_S:
            self._looked_at = self.now
            for name, host in self.hosts.items():
                self.fan_out.progressed(name, int(host.num_bytes), self.now)
            self._obey(self.fan_out.look(self.now))

    def kill(self, name: str) -> None:
        """Let a host die: the launcher is told, and then those that fetch from it find their connections closed."""
        del self.hosts[name]
        for host in self.hosts.values():
            if host.source == name:
                host.source = None
        self._obey(self.fan_out.gone(name, self.now))

    def fail(self, name: str, problem: FetchProblem) -> None:
        """Let a host report a problem with its source."""
        host = self.hosts[name]
        if host.source is not None:
            host.source = None
            if problem in (FetchProblem.CORRUPT, FetchProblem.NO_MEMORY):
                host.num_bytes = 0.0
            self._obey(self.fan_out.failed(name, problem, self.now))

    def missing(self) -> dict[str, tuple[str | None, int]]:
        """Hosts that do not have it, with the source and the bytes of each."""
        return {name: (host.source, int(host.num_bytes)) for name, host in self.hosts.items() if host.came_at_s is None}

    def readers(self) -> Counter[str]:
        """How many hosts fetch from each source now."""
        return Counter(host.source for host in self.hosts.values() if host.source is not None)

    def _flow(self) -> None:
        there = {name: self._passed_on(host) for name, host in self.hosts.items() if not host.is_hung}
        there[LAUNCHER_SOURCE] = self.size_bytes
        wanting = [
            host
            for host in self.hosts.values()
            if host.source is not None and there.get(host.source, 0.0) > host.num_bytes
        ]
        num = Counter(host.source for host in wanting)
        for host in wanting:
            assert host.source is not None
            rate = self._launcher_rate if host.source == LAUNCHER_SOURCE else self.hosts[host.source].rate
            most = min(rate / num[host.source], host.rate) * _STEP_S
            count = min(most, there[host.source] - host.num_bytes)
            host.num_bytes += count
            self.sent_by_launcher += count * (host.source == LAUNCHER_SOURCE)

    def _passed_on(self, host: SimulatedHost) -> float:
        if host.num_bytes >= self.size_bytes:
            return self.size_bytes
        return host.num_bytes // self._piece_bytes * self._piece_bytes

    def _obey(self, fetches: Iterable[Fetch]) -> None:
        for fetch in fetches:
            host = self.hosts.get(fetch.host)
            if host is None:
                continue
            host.orders.append(fetch.source)
            host.source = fetch.source
            if fetch.source != LAUNCHER_SOURCE and not host.reaches(fetch.source):
                self.fail(fetch.host, FetchProblem.UNREACHABLE)


def hosts_of(num_hosts: int, **facts: float | bool) -> dict[str, SimulatedHost]:
    """Some hosts that are alike."""
    return {f"agent-{number}": SimulatedHost(**facts) for number in range(1, num_hosts + 1)}  # type: ignore[arg-type]
