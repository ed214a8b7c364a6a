"""The interface between a session and the owners that ask it for processes."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec

from ropewalk.engines.resources import Resources
from ropewalk.processes.messages import Exited, NotStarted, TaskReport
from ropewalk.processes.page import IDLE, PageReport
from ropewalk.transport.link import Codec, Link, Received

owner_numbers: Iterator[int] = itertools.count(1)
"""Numbers for the owners of processes that this process has, by which `Session.output_group` tells them apart."""

EMPTY_PAGE = PageReport(IDLE, 0.0, 0, b"", b"", b"")
"""The report of a process that has done nothing, or about which nothing is known."""


class ProcessSpec(msgspec.Struct, frozen=True):
    """A process to start."""

    group: str
    """The name of the group to which it belongs, such as "pool-1"."""
    rank: int
    """Its number in the group."""
    entry: str
    """`module:function`; called in the new process with its `ProcessContext`."""
    codec: Codec
    """The protocol of its link to the owner."""
    resources: Resources = msgspec.field(default_factory=Resources)
    bounded: bool = False
    """Whether the process is limited to its resources on its host, and refused if no host has as many."""
    preload: tuple[str, ...] = ()
    """Modules that the fork server imports; one whose name ends in "?" is skipped where it is not installed."""
    environment: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """Variables on top of those of this process at the time of the request."""
    limits_threads: bool = True
    """Whether numerical libraries get as many threads as it has CPUs, where no variable says how many."""
    task_limit_s: float | None = None
    beside: str = ""
    """Processes of one owner with the same word here share a host."""
    plain_output: bool = False
    """Whether to show its output without its name in front, in a run of one host."""
    kind: str = ""
    """What it is where nothing else shows it to other terminals: "process", "manager" or "depot"; empty if a pool or a
    program does."""
    agent: str = ""
    """The agent that has to host it, as a service of that host: it takes no room that other processes could have."""

    run: str = ""
    """The run to which the process may write records, as text that its code understands; "": that of this process."""
    output: str = ""
    """The name under which its output is kept; "": its own name."""

    @property
    def name(self) -> str:
        """The name that the user sees."""
        return f"{self.group}.{self.rank}"


class Owner(Protocol):
    """The requester of processes. Everything is called on the loop's thread."""

    def on_link(self, id: str, link: Link) -> None:
        """Called when the process is up and its link open."""

    def on_message(self, id: str, received: Received) -> None:
        """Called with each message of the process to its owner."""

    def on_report(self, id: str, report: TaskReport) -> None:
        """Called with the answer to a peek or a recall."""

    def on_exited(self, id: str, exited: Exited, host_lost: bool) -> None:
        """Called when the process is gone; everything that it sent was delivered before.

        `host_lost`: its agent is gone with it.
        """

    def on_not_started(self, id: str, failure: NotStarted) -> None:
        """Called when the process could not be started."""

    def on_draining(self, id: str, why: str, left_s: float) -> None:
        """Called when the host of a process is about to be taken away; running work may take `left_s` seconds more."""

    def on_event(self, text: str, kind: str = "") -> None:
        """Called when something happened to a host of this session, such as the loss of an agent.

        `kind`: as in `EventView`.
        """

    def on_failed(self, error: Exception) -> None:
        """Called when the session cannot give processes any more.

        It may also be called on an owner that has released the session.
        """


def gone_with_agent(id: str, pid: int, why: str) -> Exited:
    """Return the report of the end of a process whose agent is gone."""
    return Exited(
        id=id,
        pid=pid,
        exit_code=-signal.SIGKILL,
        out_of_memory="",
        ended_by=why,
        timed_out=False,
        ran_s=0.0,
        last_output="",
        page=EMPTY_PAGE,
    )
