"""What sessions, agents and processes say to each other on control links.

session ──▶ agent    StartProcess SignalProcess Recall Peek PutBlob DropBlob OutputSeen Ping Shutdown
agent ──▶ session    AgentUp Started NotStarted Exited Report Output Samples Pong HostEvent
process ──▶ agent    GetBlob            agent ──▶ process    BlobHere
"""

from __future__ import annotations

import msgspec

from ropewalk.processes.page import PageReport
from ropewalk.transport.blobs import BlobRef
from ropewalk.transport.link import Codec


class StartProcess(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Start a process and connect it to its owner."""

    id: str
    name: str
    entry: str
    """`module:function`, called with the process's context and its link to the owner."""
    secret: str
    address: str
    """Where the owner listens."""
    environment: dict[str, str]
    cpus: float
    preload: tuple[str, ...]
    folder: str
    path: tuple[str, ...]
    task_limit_s: float | None
    """A task that runs longer ends the process."""


class SignalProcess(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """Send a signal to a process; SIGKILL goes to its whole group."""

    id: str
    signal: int


class Recall(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """Take back tasks before `until` that have not started, half of them or all; answered by `Report`."""

    id: str
    until: int
    everything: bool = False


class Peek(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """Tell what a process is doing and has finished; answered by `Report`."""

    id: str


class PutBlob(msgspec.Struct, tag=5, array_like=True, frozen=True):
    """Keep a blob for this host: with its memory file on one host, with its parts between hosts."""

    ref: BlobRef


class DropBlob(msgspec.Struct, tag=6, array_like=True, frozen=True):
    """The sender needs a blob no longer."""

    id: str


class GetBlob(msgspec.Struct, tag=7, array_like=True, frozen=True):
    """Hand over a blob; answered by `BlobHere` as soon as it is there."""

    id: str


class OutputSeen(msgspec.Struct, tag=8, array_like=True, frozen=True):
    """So much output was shown; the agent may send as much again."""

    size_bytes: int


class Ping(msgspec.Struct, tag=9, array_like=True, frozen=True):
    """Are you there? Answered by `Pong`."""


class Shutdown(msgspec.Struct, tag=10, array_like=True, frozen=True):
    """End every process of the sender; an agent whose launcher says so ends itself."""


class AgentUp(msgspec.Struct, tag=20, array_like=True, frozen=True):
    """An agent is ready."""

    pid: int
    host: str
    address: str
    """Where processes of this host reach it."""
    usable_cpus: int


class Started(msgspec.Struct, tag=21, array_like=True, frozen=True):
    """A process runs (its link to the owner may not be up yet)."""

    id: str
    pid: int


class NotStarted(msgspec.Struct, tag=22, array_like=True, frozen=True):
    """A process could not be started."""

    id: str
    reason: str
    limit: bool = False
    """Whether the host holds as many processes as it may."""


class Exited(msgspec.Struct, tag=23, array_like=True, frozen=True):
    """A process is gone, with everything known of why."""

    id: str
    pid: int
    exit_code: int
    """As in the standard library: negative numbers are signals."""
    out_of_memory: str
    ended_by: str
    """Why the agent itself ended it ("" if it did not): a time limit, a stop that lasted, the owner's wish."""
    timed_out: bool
    """Whether its task ran longer than the limit."""
    ran_s: float
    last_output: str
    page: PageReport


class Report(msgspec.Struct, tag=24, array_like=True, frozen=True):
    """The answer to `Peek` and `Recall`."""

    id: str
    page: PageReport
    recalled_from: int
    recalled_until: int


class Output(msgspec.Struct, tag=25, array_like=True, frozen=True):
    """Whole lines that a process printed."""

    id: str
    is_error: bool
    text: str
    size_bytes: int


class Sample(msgspec.Struct, tag=26, array_like=True, frozen=True):
    """What one process uses."""

    id: str
    memory_bytes: int
    cpu_s: float
    state: str


class Samples(msgspec.Struct, tag=27, array_like=True, frozen=True):
    """What the processes of a host use."""

    samples: list[Sample]


class Pong(msgspec.Struct, tag=28, array_like=True, frozen=True):
    """I am here."""


class HostEvent(msgspec.Struct, tag=29, array_like=True, frozen=True):
    """Something happened to the host itself, in words."""

    text: str


class BlobHere(msgspec.Struct, tag=30, array_like=True, frozen=True):
    """A blob, with its memory file."""

    ref: BlobRef


CONTROL = Codec(
    StartProcess
    | SignalProcess
    | Recall
    | Peek
    | PutBlob
    | DropBlob
    | GetBlob
    | OutputSeen
    | Ping
    | Shutdown
    | AgentUp
    | Started
    | NotStarted
    | Exited
    | Report
    | Output
    | Samples
    | Pong
    | HostEvent
    | BlobHere
)


class AgentBoot(msgspec.Struct, frozen=True):
    """What an agent needs to know before it can dial; handed over on its standard input."""

    run_id: str
    agent_id: str
    secret: str
    address: str
    folder: str
    launcher_pid: int
    max_processes: int
    log_folder: str = ""


class ForkRequest(msgspec.Struct, frozen=True, array_like=True):
    """One process to fork, as the fork server hears of it (with descriptors: stdout, stderr, page)."""

    start: StartProcess
    run_id: str
    agent_address: str
    agent_pid: int
    host: str


class ForkReply(msgspec.Struct, frozen=True, array_like=True):
    """What became of a fork; pid 0 with a reason when it failed."""

    id: str
    pid: int
    reason: str = ""
