"""A loop whose time the test moves, and a hosting that starts nothing: the test speaks for the hosts.

Conductor, Endings, Announcer ──▶ RecordingHosting: starts, told, signals, in the order in which they came
test: up, ready, says, exits ──▶ Target (real messages, encoded and decoded as on a link)
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ropewalk.engines.resources import Resources
from ropewalk.program.hosting import Hosting, Launch, Target
from ropewalk.program.messages import PROGRAM, NodeReady, StartUnit, UnitEnded, UnitName, UnitUp
from ropewalk.program.node import NodeSpec
from ropewalk.program.nodes.service import Service
from ropewalk.program.nodes.worker import Worker
from ropewalk.program.restart_rule import Restart, restart_rule
from ropewalk.supervision.failure import DeathRecord
from ropewalk.transport.failures import Failure, failure_of
from ropewalk.transport.frames import Part
from ropewalk.transport.loop import Timer


class Store:
    """A service that nobody really calls."""

    def get(self) -> int:
        return 1


def work() -> None:
    """A worker that never really runs."""


def service(name: str, *, unit: str = "", restart: str | Restart | None = None, **facts: Any) -> NodeSpec:
    return _spec(name, Service(Store), unit, restart, facts)


def worker(name: str, *, unit: str = "", restart: str | Restart | None = None, **facts: Any) -> NodeSpec:
    return _spec(name, Worker(work), unit, restart, facts)


def _spec(name: str, node: Any, unit: str, restart: str | Restart | None, facts: Mapping[str, Any]) -> NodeSpec:
    facts = {"gang": unit or name, "resources": Resources(), **facts}
    return NodeSpec(name=name, node=node, unit=unit or name, restart=restart_rule(restart), **facts)


def name_of(unit: str, replica: int = 0, generation: int = 0) -> UnitName:
    return UnitName(unit, replica, generation)


class StandStillLoop:
    """Makes calls when the test lets time pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[Callable[[], object]] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()

    def call_soon(self, call: Callable[[], object]) -> None:
        self._calls.append(call)

    def call_later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        timer = Timer(self.now + delay_s, call)
        heapq.heappush(self._timers, (timer.due, next(self._order), timer))
        return timer

    @property
    def num_planned(self) -> int:
        """Timers that were not cancelled."""
        return sum(timer.call is not None for *_, timer in self._timers)

    def turn(self) -> None:
        """Make the calls that were handed over."""
        while self._calls:
            self._calls.pop(0)()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        self.turn()
        while self._timers and self._timers[0][0] <= until:
            self.now, _, timer = heapq.heappop(self._timers)
            if timer.call:
                timer.call()
            self.turn()
        self.now = until


class RecordingHosting(Hosting):
    """Writes down what is wanted of it; with `shares_host` as threads, else as processes."""

    mode = "processes"

    def __init__(self, folder: Path = Path("nowhere"), *, shares_host: bool = False) -> None:
        self.time = StandStillLoop()
        self.loop = self.time  # type: ignore[assignment]  # as much of a loop as is used
        self.run_id = "run-1"
        self.folder = folder
        self.shares_host = shares_host
        self.target: Target
        self.live: dict[UnitName, Launch] = {}
        self.starts: list[UnitName] = []
        self.told: list[tuple[UnitName, Any]] = []
        self.signals: list[tuple[UnitName, int]] = []
        self.shown: list[tuple[UnitName, str]] = []
        self.problem: Exception | None = None
        """Raised by the next start."""
        self.pids: dict[UnitName, int] = {}
        self.fingerprints: dict[UnitName, str] = {}
        """Of certificates."""

    def start(self, launch: Launch) -> None:
        if self.problem:
            problem, self.problem = self.problem, None
            raise problem
        name = launch.start.name
        others = [each for each in self.live if (each.unit, each.replica) == (name.unit, name.replica)]
        assert self.shares_host or not others, "one at a time, unless an abandoned thread lives on"
        assert PROGRAM.decode(PROGRAM.encode(launch.start)) == launch.start
        self.live[name] = launch
        self.starts.append(name)

    def tell(self, name: UnitName, message: msgspec.Struct, parts: Sequence[Part] = ()) -> None:
        assert PROGRAM.decode(PROGRAM.encode(message)) == message
        self.told.append((name, message))

    def signal(self, name: UnitName, number: int) -> bool:
        if self.shares_host:
            return False
        self.signals.append((name, number))
        return True

    def show(self, name: UnitName, host: str, text: str) -> None:
        self.shown.append((name, text))

    def key_of(self, name: UnitName) -> str:
        return f"key of {self.host_id(name)}"

    def host_id(self, name: UnitName) -> str:
        return "threads" if self.shares_host else super().host_id(name)

    def fingerprint_of(self, name: UnitName) -> str:
        return self.fingerprints.get(name, "")

    def pid_of(self, name: UnitName) -> int:
        return self.pids.get(name, 0)

    def close(self) -> None:
        pass

    # The test's side

    def message(self, name: UnitName) -> StartUnit:
        """What a unit was started with."""
        return self.live[name].start

    def heard(self, kind: type[Any], name: UnitName | None = None) -> list[Any]:
        """The messages of a kind that hosts, or one of them, were told."""
        return [message for to, message in self.told if isinstance(message, kind) and name in (None, to)]

    def says(self, name: UnitName, message: msgspec.Struct) -> None:
        """The host of a unit says something."""
        self.target.heard(name, PROGRAM.decode(PROGRAM.encode(message)))
        self.time.turn()

    def up(self, name: UnitName) -> None:
        """The host of a unit listens."""
        self.pids[name] = 1000 + len(self.pids)
        self.says(name, UnitUp(name, self.address(name)))

    def ready(self, name: UnitName, node: str = "", target: int = 1) -> None:
        """A node of a unit is ready."""
        self.says(name, NodeReady(name, node or name.unit, target))

    def run(self, name: UnitName, target: int = 1) -> None:
        """A unit of one node comes up and is ready."""
        self.up(name)
        self.ready(name, target=target)

    def address(self, name: UnitName) -> str:
        return f"unix:/{self.host_id(name)}"

    def returns(self, name: UnitName) -> None:
        """All nodes of a unit return, and its process ends."""
        self.says(name, UnitEnded(name, "", None))
        self.exits(name, 0)

    def raises(self, name: UnitName, error: Exception, node: str = "") -> None:
        """A node of a unit raises, and its process ends."""
        self.says(name, UnitEnded(name, node or name.unit, as_failure(error)))
        self.exits(name, 1)

    def exits(self, name: UnitName, code: int, last_output: str = "") -> None:
        """The process of a unit ends; negative codes are signals."""
        self.live.pop(name)
        ending: dict[str, Any] = {"exit_code": code} if code >= 0 else {"signal": -code}
        record = None
        if not self.shares_host:
            record = DeathRecord(name=name.unit, host="here", pid=7, last_output=last_output, **ending)
        self.target.ended(name, record, "")
        self.time.turn()


def as_failure(error: Exception) -> Failure:
    try:
        raise error
    except Exception as raised:
        return failure_of(raised)
