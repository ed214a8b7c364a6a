"""The state of a program at one moment: as data, as JSON and in words."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from ropewalk.html_table import StateCell, html_box, html_headline, html_table, html_text
from ropewalk.quantities import counted, shown_duration, shown_size
from ropewalk.text_table import text_table

NodeState = Literal["waiting", "starting", "running", "restarting", "completed", "failed", "stopping", "ended"]
ProgramState = Literal["starting", "running", "stopping", "completed", "stopped", "failed"]

_SHOWN_CHARACTERS = 120
"""Maximum length of a node's last cause in its line of `describe`; the record has the whole text."""
_SHOWN_EVENTS = 5


@dataclass(frozen=True, slots=True)
class NodeCall:
    """A call that a node is serving."""

    method: str
    running_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One replica of a node."""

    name: str
    replica: int
    kind: str
    """Such as "service" or "worker"."""
    state: NodeState
    generation: int = 0
    """Number of restarts before this start."""
    pid: int = 0
    """Process ID; 0 until it has started."""
    host: str = ""
    restarts: int = 0
    """Restarts caused by failures; restarts on request are not counted."""
    uptime_s: float = 0.0
    """Seconds since this generation began; 0 if it does not run."""
    memory_bytes: int = 0
    """Resident memory in bytes, measured about once a second."""
    cpu_s: float = 0.0
    calls_done: int = 0
    calls_waiting: int = 0
    """Calls that have arrived and not begun; a growing number means that callers are faster than this node."""
    calls_running: tuple[NodeCall, ...] = ()
    last_cause: str = ""
    """The cause of its last end; empty if it never ended."""

    @property
    def label(self) -> str:
        """The name shown in its output, such as "actor.3"."""
        return f"{self.name}.{self.replica}"

    def describe(self) -> str:
        """This replica in one line."""
        return "  ".join(self.cells()).rstrip()

    def cells(self) -> tuple[str, ...]:
        """This replica as a row of a table."""
        return (
            self.label,
            self.kind,
            self.state,
            f"pid {self.pid or '-'}",
            self.host,
            shown_duration(self.uptime_s),
            shown_size(self.memory_bytes),
            f"{self.calls_done} calls",
            f"{self.calls_waiting} waiting",
            "; ".join(self.remarks()),
        )

    def remarks(self) -> list[str]:
        """Remarks that are shown only if there are any: its current calls, restarts, and the last cause."""
        remarks: list[str] = []
        if self.calls_running:
            calls = (f"{call.method} for {shown_duration(call.running_s)}" for call in self.calls_running[:3])
            more = f" and {len(self.calls_running) - 3} more" if len(self.calls_running) > 3 else ""
            remarks.append(f"in {', '.join(calls)}{more}")
        if self.restarts:
            remarks.append(counted(self.restarts, "restart"))
        if self.last_cause:
            cause = " ".join(self.last_cause.split())
            remarks.append(cause if len(cause) <= _SHOWN_CHARACTERS else f"{cause[: _SHOWN_CHARACTERS - 1]}…")
        return remarks

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return msgspec.json.decode(msgspec.json.encode(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStatus:
    """A program, with every replica of its nodes."""

    name: str
    run_id: str
    pid: int
    """Process ID of the launcher."""
    state: ProgramState
    mode: str
    """"processes" or "threads"."""
    started: float
    """Unix time."""
    nodes: tuple[NodeStatus, ...] = ()
    events: tuple[str, ...] = ()
    """What happened to nodes and hosts, oldest first."""
    ways: tuple[str, ...] = ()
    """Hosts that reach each other only through a relay."""

    @property
    def uptime_s(self) -> float:
        """Seconds since launch, by the clock of this machine."""
        return max(0.0, time.time() - self.started)

    def describe(self) -> str:
        """The program in one line, each replica and each relayed connection in another, and the last events."""
        nodes = text_table([node.cells() for node in self.nodes], right={5, 6, 7, 8})
        rows = [*nodes, *self.ways, *self.last_events()]
        return "\n".join([self.headline(), *(f"  {row}" for row in rows)])

    def headline(self) -> str:
        """Name, state and counts in one line."""
        return (
            f"{self.name} {self.state}, pid {self.pid}, {self.mode}, up {shown_duration(self.uptime_s)}: "
            f"{self.count_nodes()}"
        )

    def count_nodes(self) -> str:
        """Counts of nodes by state, such as "3 running, 1 restarting"."""
        counts = Counter(node.state for node in self.nodes)
        return ", ".join(f"{count} {state}" for state, count in counts.items()) or "no nodes"

    def last_events(self) -> tuple[str, ...]:
        """The events that fit below a table."""
        return self.events[-_SHOWN_EVENTS:]

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return msgspec.json.decode(msgspec.json.encode(self))

    def __str__(self) -> str:
        return self.describe()

    def _repr_html_(self) -> str:
        facts = [("", self.count_nodes()), ("", f"{self.mode}, pid {self.pid}"), ("up", shown_duration(self.uptime_s))]
        rows = [
            (node.label, node.kind, StateCell(node.state), f"{node.calls_done:,}", str(node.calls_waiting or ""),
             shown_duration(round(node.uptime_s, 1)) if node.uptime_s else "",
             shown_size(node.memory_bytes) if node.memory_bytes else "", node.host, str(node.pid or ""),
             "; ".join(node.remarks()))
            for node in self.nodes
        ]  # fmt: skip
        head = ("node", "kind", "state", "calls", "waiting", "up", "memory", "host", "pid", "")
        events = [f"<div>{html_text(event)}</div>" for event in (*self.ways, *self.last_events())]
        table = html_table(head, rows, right={3, 4, 5, 6, 8})
        return html_box(html_headline(self.name, self.state, facts), table, *events)
