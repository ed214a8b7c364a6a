"""The state of a program at one moment: as data, as JSON and in words."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from ropewalk.control.view import EventView, ProcessView, View
from ropewalk.control.view_text import counts, described, headline, process_cells, remarks, shown_events
from ropewalk.html_table import StateCell, html_box, html_headline, html_table, html_text
from ropewalk.quantities import listed, shown_duration, shown_size

NodeState = Literal["waiting", "starting", "running", "restarting", "completed", "failed", "stopping", "ended"]
ProgramState = Literal["starting", "running", "stopping", "completed", "stopped", "failed"]

_SHOWN_CALLS = 3
_CALLING = ("worker", "rank_group")
"""Kinds of nodes that call others, and answer no calls themselves."""


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

    @property
    def answers_calls(self) -> bool:
        """Whether others call it, so that a count of 0 means something."""
        return self.kind not in _CALLING or self.calls_done > 0

    def describe(self) -> str:
        """This replica in one line."""
        return "  ".join(process_cells("program", self.as_process())).rstrip()

    def as_process(self) -> ProcessView:
        """This replica as views show it."""
        calls = sorted(self.calls_running, key=lambda call: -call.running_s)
        return ProcessView(
            name=self.label,
            group=self.name,
            kind=self.kind,
            host=self.host,
            pid=self.pid,
            state=self.state,
            doing=listed([call.method for call in calls], _SHOWN_CALLS),
            doing_s=calls[0].running_s if calls else 0.0,
            uptime_s=self.uptime_s,
            memory_bytes=self.memory_bytes,
            cpu_s=self.cpu_s,
            restarts=self.restarts,
            is_counted=self.answers_calls,
            done=self.calls_done,
            waiting=self.calls_waiting,
            last_cause=self.last_cause,
        )

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
        """The program in one line, each replica in another, relayed connections, and the last events."""
        return described(self.as_view())

    def headline(self) -> str:
        """Name, state and counts in one line."""
        return headline(self.as_view())

    def count_nodes(self) -> str:
        """Counts of nodes by state, such as "3 running, 1 restarting"."""
        return counts(self.as_view())

    def as_view(self) -> View:
        """The program as it is shown, with what the status knows."""
        facts: dict[str, float | int | str] = {
            "mode": self.mode,
            "restarts": sum(node.restarts for node in self.nodes),
            "hosts": len({node.host for node in self.nodes if node.host}),
            "memory_bytes": sum(node.memory_bytes for node in self.nodes),
        }
        if self.ways:
            facts["relays"] = "; ".join(self.ways)
        return View(
            kind="program",
            name=self.name,
            id="",
            pid=self.pid,
            state=self.state,
            started=self.started,
            at=time.time(),
            facts=facts,
            processes=tuple(node.as_process() for node in self.nodes),
            events=tuple(EventView(text=text) for text in self.events),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return msgspec.json.decode(msgspec.json.encode(self))

    def __str__(self) -> str:
        return self.describe()

    def _repr_html_(self) -> str:
        facts = [("", self.count_nodes()), ("", f"{self.mode}, pid {self.pid}"), ("up", shown_duration(self.uptime_s))]
        rows = [
            (node.label, node.kind, StateCell(node.state), f"{node.calls_done:,}" if node.answers_calls else "",
             str(node.calls_waiting or ""),
             shown_duration(round(node.uptime_s, 1)) if node.uptime_s else "",
             shown_size(node.memory_bytes) if node.memory_bytes else "", node.host, str(node.pid or ""),
             "; ".join(remarks(node.as_process())))
            for node in self.nodes
        ]  # fmt: skip
        head = ("node", "kind", "state", "calls", "waiting", "up", "memory", "host", "pid", "")
        events = [f"<div>{html_text(event)}</div>" for event in (*self.ways, *shown_events(self.as_view()))]
        table = html_table(head, rows, right={3, 4, 5, 6, 8})
        return html_box(html_headline(self.name, self.state, facts), table, *events)
