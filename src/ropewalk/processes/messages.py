"""What sessions, agents and processes say to each other on control links.

session ──▶ agent    StartProcess SignalProcess Recall Peek PutBlob DropBlob PutCode OutputSeen Ping ShutdownMessage
                     OpenRelay MeetAt NoWay ServiceAt TokenIs Retired
agent ──▶ session    AgentUp Started NotStarted Exited TaskReport Output Samples Pong HostEvent Draining
                     NeedWay RelayAt Met NeedService NeedToken Retired
process ──▶ agent    GetBlob GetMade PutBlob NeedWay NeedService NeedToken
agent ──▶ process    BlobHere Make NoWay ServiceAt TokenIs
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ropewalk.processes.environment import Change
from ropewalk.processes.page import PageReport
from ropewalk.transport.blobs import BlobRef
from ropewalk.transport.credentials import ProcessCertificate
from ropewalk.transport.link import Codec

#: Of an agent that its launcher refused: another one would be refused as well.
REFUSED_EXIT_CODE = 77
#: Ends the name of a preloaded module that is left out where it cannot be imported.
IF_THERE = "?"


#: The number of one process: to a signal, others would mean whole groups, or all that there are.
Pid = Annotated[int, msgspec.Meta(ge=1)]


class Certificate(msgspec.Struct, array_like=True, frozen=True):
    """A process's certificate of the run with its key, as PEM; see `ProcessCertificate`."""

    cert_pem: str
    key_pem: str
    ca_pem: str
    fingerprint: str

    def __repr__(self) -> str:
        return f"Certificate({self.fingerprint[:16]}...)"

    @classmethod
    def of(cls, certificate: ProcessCertificate) -> Certificate:
        """As it travels."""
        return cls(certificate.cert_pem, certificate.key_pem, certificate.ca_pem, certificate.fingerprint)

    def unpacked(self) -> ProcessCertificate:
        """As it is used."""
        return ProcessCertificate(self.cert_pem, self.key_pem, self.ca_pem, self.fingerprint)


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
    gpus: int = 0
    certificate: Certificate | None = None
    """For speaking with other hosts, in a run that has some."""
    code: str = ""
    """The project's files, by the id that `PutCode` gave them; `folder` and `path` are of the launcher's host then."""
    code_root: str = ""
    """Where the project lies on the launcher's host."""
    bounded: bool = False
    """Whether it gets no more CPUs and GPUs than it asks for, and does not start where there are fewer."""
    memory_limit_bytes: int = 0
    """What it and all that it starts may use, 0 for any amount."""
    cpu_numbers: tuple[int, ...] = ()
    """The CPUs that its agent binds it to."""
    changes: dict[str, Change] = {}
    """How its environment differs from its agent's; what `environment` says comes on top."""
    limits_threads: bool = True
    """Whether numerical libraries get as many threads as it has CPUs, where nobody has said how many."""


class SignalProcess(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """Send a signal to a process; SIGKILL goes to its whole group."""

    id: str
    signal: int


class Recall(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """Take back tasks before `until` that have not started, half of them or all; answered by `TaskReport`."""

    id: str
    until: int
    everything: bool = False


class Peek(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """Tell what a process is doing and has finished; answered by `TaskReport`."""

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


class PutCode(msgspec.Struct, tag=11, array_like=True, frozen=True):
    """Unpack the project's files (the only part), for processes that ask for them by this id."""

    id: str


class OpenRelay(msgspec.Struct, tag=12, array_like=True, frozen=True):
    """Let two processes that come with this ticket meet at your switchboard; answered by `RelayAt`."""

    ticket: str


class MeetAt(msgspec.Struct, tag=13, array_like=True, frozen=True):
    """Bring your side of a connection: to another switchboard, or (no `ip`) wait at your own."""

    ticket: str
    ip: str
    port: int
    target: str
    """The address of a process of your host that the connection is for; "" for one that has asked with `NeedWay`."""


class NoWay(msgspec.Struct, tag=14, array_like=True, frozen=True):
    """There is no way for this ticket."""

    ticket: str
    why: str


class ServiceAt(msgspec.Struct, tag=15, array_like=True, frozen=True):
    """Where a service of this host is, or why it cannot be had."""

    ticket: str
    address: str
    problem: str


class OutputSeen(msgspec.Struct, tag=8, array_like=True, frozen=True):
    """So much output was shown; the agent may send as much again."""

    size_bytes: int


class Ping(msgspec.Struct, tag=9, array_like=True, frozen=True):
    """Are you there? Answered by `Pong`."""


class ShutdownMessage(msgspec.Struct, tag=10, array_like=True, frozen=True):
    """End every process of the sender; an agent whose launcher says so ends itself."""


class AgentUp(msgspec.Struct, tag=20, array_like=True, frozen=True):
    """An agent is ready."""

    pid: Pid
    host: str
    address: str
    """Where processes of this host reach it."""
    usable_cpus: int
    ip: str = ""
    """Where other hosts reach processes of this one; "" if only the agent leads here."""
    dialled: bool = False
    """Whether the launcher had to dial, because it could not be reached from here."""
    environment: dict[str, str] | None = None
    """What its processes inherit, if the launcher is on this host; of others it stays there."""


class Started(msgspec.Struct, tag=21, array_like=True, frozen=True):
    """A process runs (its link to the owner may not be up yet)."""

    id: str
    pid: Pid


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


class TaskReport(msgspec.Struct, tag=24, array_like=True, frozen=True):
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


class Draining(msgspec.Struct, tag=31, array_like=True, frozen=True):
    """This host is about to be taken away: give it nothing new."""

    why: str
    left_s: float
    """What runs is given so long."""


class NeedWay(msgspec.Struct, tag=32, array_like=True, frozen=True):
    """A process cannot reach another host directly; whoever comes with the ticket is connected with it."""

    ticket: str
    to: str
    """The address that it wants to reach."""


class RelayAt(msgspec.Struct, tag=33, array_like=True, frozen=True):
    """Where the switchboard is that two sides may meet at."""

    ticket: str
    ip: str
    port: int


class Met(msgspec.Struct, tag=34, array_like=True, frozen=True):
    """Two sides have met at our switchboard."""

    ticket: str


class NeedService(msgspec.Struct, tag=35, array_like=True, frozen=True):
    """A process needs the service of its host that runs this entry; answered by `ServiceAt`."""

    ticket: str
    entry: str
    unanswered: str = ""
    """Where it does not answer any more."""


class NeedToken(msgspec.Struct, tag=38, array_like=True, frozen=True):
    """A process wants to call the service at an address, and needs the token for it; answered by `TokenIs`."""

    ticket: str
    address: str
    id: str = ""
    """Who asks; the agent, which knows, says so to the launcher."""


class TokenIs(msgspec.Struct, tag=16, array_like=True, frozen=True):
    """The token that was asked for, or why there is none."""

    ticket: str
    token: str
    problem: str = ""

    def __repr__(self) -> str:
        return f"TokenIs({self.ticket!r}, problem={self.problem!r})"


class RetiredProcess(msgspec.Struct, array_like=True, frozen=True):
    """A process that may not speak any more."""

    id: str
    fingerprint: str = ""
    """Of its certificate, if it had one."""
    is_cut: bool = False
    """Whether links to it are closed at once: it was struck off, or lost with its host. One that has ended did so."""


class Retired(msgspec.Struct, tag=40, array_like=True, frozen=True):
    """Some processes are gone or struck off: said to all that accept callers, in this protocol and in others."""

    processes: list[RetiredProcess]


class GetMade(msgspec.Struct, tag=36, array_like=True, frozen=True):
    """Hand over a blob that processes of this host make: `BlobHere`, or `Make` if there is none and nobody makes it."""

    id: str
    """The name of its recipe."""


class Make(msgspec.Struct, tag=37, array_like=True, frozen=True):
    """Make the blob that you want, and hand it over with `PutBlob`; others wait for it."""

    id: str


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
    | ShutdownMessage
    | AgentUp
    | Started
    | NotStarted
    | Exited
    | TaskReport
    | Output
    | Samples
    | Pong
    | HostEvent
    | BlobHere
    | PutCode
    | OpenRelay
    | MeetAt
    | NoWay
    | Draining
    | NeedWay
    | RelayAt
    | Met
    | NeedService
    | ServiceAt
    | GetMade
    | Make
    | NeedToken
    | TokenIs
    | Retired
)


class AgentBoot(msgspec.Struct, frozen=True):
    """What an agent needs to know before it can dial; handed over on its standard input."""

    run_id: str
    agent_id: str
    secret: str
    address: str
    """Of the launcher."""
    folder: str
    """The run folder, if this is the launcher's host; else "", and the agent makes one."""
    launcher_pid: int
    """On this host; 0 if the launcher is on another one."""
    max_processes: int
    log_folder: str = ""
    certificate: Certificate | None = None
    launcher_secret: str = ""
    """What the launcher shows if it has to dial."""
    launcher_ticket: str = ""
    """What it shows at the switchboard then."""
    launcher_fingerprint: str = ""
    door: bool = False
    """Whether to wait for the launcher at the door that the engine has made, because it carries the connections."""
    service_key: str = ""
    """From which the keys of services on this host follow; see `transport/tokens.py`."""
    lease_s: float = 0.0
    """A launcher on another host that is silent for so long is gone; 0 for one on this host."""

    def __repr__(self) -> str:
        return f"AgentBoot(run_id={self.run_id!r}, agent_id={self.agent_id!r}, address={self.address!r})"


class ForkRequest(msgspec.Struct, frozen=True, array_like=True):
    """One process to fork, as the fork server hears of it (with descriptors: stdout, stderr, page)."""

    start: StartProcess
    run_id: str
    agent_address: str
    agent_pid: int
    host: str
    service_key: str = ""
    """Of the socket at which it may serve others."""
    host_id: str = ""
    """The agent's name in a run of several hosts; "" if there is one."""
    ip: str = ""


class ForkReply(msgspec.Struct, frozen=True, array_like=True):
    """What became of a fork; pid 0 with a reason when it failed."""

    id: str
    pid: int
    reason: str = ""
