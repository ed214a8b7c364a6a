"""The messages of sessions, agents and processes on control links.

session ──▶ agent    StartProcess SignalProcess SetRequest Recall Peek PutBlob DropBlob PutCode OutputSeen RecordsSeen
                     FlushRecords Ping ShutdownMessage OpenRelay MeetAt NoWay ServiceAt TokenIs Retired FetchBlob
                     BlobPiece BlobAbsent
agent ──▶ session    AgentUp Started NotStarted Exited TaskReport Output Records RecordsFlushed Samples Pong HostEvent
                     Draining NeedWay RelayAt Met NeedService NeedToken Retired ReadBlob BlobProgress BlobFetched
                     BlobNotFetched
agent ──▶ agent      ReadBlob BlobPiece BlobAbsent
process ──▶ agent    GetBlob GetMade PutBlob NeedWay NeedService NeedToken
agent ──▶ process    BlobHere BlobAbsent Make NoWay ServiceAt TokenIs
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ropewalk.processes.environment import Change
from ropewalk.processes.fan_out import FetchProblem
from ropewalk.processes.page import PageReport
from ropewalk.transport.blobs import BlobRef
from ropewalk.transport.credentials import ProcessCertificate
from ropewalk.transport.link import Codec

REFUSED_EXIT_CODE = 77
"""Exit code of an agent that its launcher refused: another one would be refused as well."""
IF_THERE = "?"
"""Suffix of the name of a preloaded module that is skipped where it cannot be imported."""


PIECE_BYTES = 128 << 10
"""The most bytes of a blob that one message asks for."""
Pid = Annotated[int, msgspec.Meta(ge=1)]
"""A process id: to a signal, other numbers would mean whole groups, or all processes."""


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
        """Convert a certificate for sending."""
        return cls(certificate.cert_pem, certificate.key_pem, certificate.ca_pem, certificate.fingerprint)

    def unpacked(self) -> ProcessCertificate:
        """Convert it back after receiving."""
        return ProcessCertificate(self.cert_pem, self.key_pem, self.ca_pem, self.fingerprint)


class StartProcess(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Start a process and connect it to its owner."""

    id: str
    name: str
    entry: str
    """`module:function`, called with the process's context and its link to the owner."""
    secret: str
    address: str
    """Address at which the owner listens."""
    environment: dict[str, str]
    cpus: float
    preload: tuple[str, ...]
    folder: str
    path: tuple[str, ...]
    task_limit_s: float | None
    """A task that runs longer than this, in seconds, ends the process."""
    gpus: int = 0
    certificate: Certificate | None = None
    """Certificate for connections to other hosts, in a run that has several."""
    code: str = ""
    """Id that `PutCode` gave to the project's files; `folder` and `path` are of the launcher's host then."""
    code_root: str = ""
    """Folder of the project on the launcher's host."""
    bounded: bool = False
    """Whether it gets no more CPUs, GPUs and memory than it asks for, and does not start where there are fewer."""
    memory_bytes: int = 0
    """The bytes of memory that it asks for, and the limit of it and all that it starts if it is bounded; 0 for none."""
    cpu_numbers: tuple[int, ...] = ()
    """The CPUs that its agent binds it to."""
    changes: dict[str, Change] = {}
    """How its environment differs from its agent's; `environment` is applied on top."""
    limits_threads: bool = True
    """Whether numerical libraries get as many threads as it has CPUs, where no variable says how many."""
    keeps_records: bool = False
    """Whether the owner handles the records of this process; else they go to the session that started the owner."""
    run: str = ""
    """The run to which it may write records; see `ProcessSpec.run`."""
    output: str = ""
    """The name under which its output is kept; "": its own name."""
    sent: float = 0.0
    """When it was sent, in seconds since the epoch by the clock of the launcher; 0 in a run of one host."""


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
    """Report what a process is doing and has finished; answered by `TaskReport`."""

    id: str


class PutBlob(msgspec.Struct, tag=5, array_like=True, frozen=True):
    """Keep a blob for this host: with its memory file on one host, with its parts between hosts."""

    ref: BlobRef


class DropBlob(msgspec.Struct, tag=6, array_like=True, frozen=True):
    """The sender needs a blob no longer."""

    id: str


class FetchBlob(msgspec.Struct, tag=42, array_like=True, frozen=True):
    """Get a blob from another agent or from the launcher, and keep it for this host.

    It replaces an earlier request for the same blob, whose bytes count. Answered by `BlobFetched` or `BlobNotFetched`.
    """

    ref: BlobRef
    number: int
    """Number of the order, which the answers repeat."""
    source: str
    """The agent that has it, or is getting it; empty for the launcher."""
    address: str = ""
    """Address at which that agent serves others."""
    token: str = ""
    """The token that is shown there; see `transport/tokens.py`."""
    ahead_bytes: int = 0
    """The launcher sends this many bytes without being asked."""

    def __repr__(self) -> str:
        return f"FetchBlob({self.ref!r}, {self.number}, {self.source!r}, {self.address!r})"


class ReadBlob(msgspec.Struct, tag=43, array_like=True, frozen=True):
    """Send some bytes of a blob, as soon as they are there; answered by `BlobPiece` or `BlobAbsent`."""

    id: str
    offset: Annotated[int, msgspec.Meta(ge=0)]
    length: Annotated[int, msgspec.Meta(ge=1, le=PIECE_BYTES)]


class BlobPiece(msgspec.Struct, tag=44, array_like=True, frozen=True):
    """Some bytes of a blob (the only part), as it lies in memory."""

    id: str
    offset: int


class BlobAbsent(msgspec.Struct, tag=45, array_like=True, frozen=True):
    """The blob is not here, or not any more."""

    id: str
    problem: str = ""
    """Why it cannot be here; empty if it is not known."""


class BlobProgress(msgspec.Struct, tag=46, array_like=True, frozen=True):
    """How much of a blob has arrived."""

    id: str
    number: int
    num_bytes: int


class BlobFetched(msgspec.Struct, tag=47, array_like=True, frozen=True):
    """A blob has arrived, and has the content that its name promises."""

    id: str
    number: int


class BlobNotFetched(msgspec.Struct, tag=48, array_like=True, frozen=True):
    """A blob did not arrive from the source that an order named."""

    id: str
    number: int
    problem: FetchProblem


class GetBlob(msgspec.Struct, tag=7, array_like=True, frozen=True):
    """Send a blob; answered by `BlobHere` as soon as it is there, or by `BlobAbsent`."""

    id: str


class PutCode(msgspec.Struct, tag=11, array_like=True, frozen=True):
    """Unpack the project's files (the only part, or a blob), for processes that ask for them by this id."""

    id: str
    blob: str = ""
    """Id of the blob that has them, and may still be on its way."""


class OpenRelay(msgspec.Struct, tag=12, array_like=True, frozen=True):
    """Let two processes that show this ticket be joined at your relay; answered by `RelayAt`."""

    ticket: str


class MeetAt(msgspec.Struct, tag=13, array_like=True, frozen=True):
    """Bring your side of a connection: to another relay, or (no `ip`) wait at your own."""

    ticket: str
    ip: str
    port: int
    target: str
    """The address of the process of your host that the connection is for; "" for the one that asked with `NeedWay`."""


class NoWay(msgspec.Struct, tag=14, array_like=True, frozen=True):
    """There is no route for this ticket."""

    ticket: str
    why: str


class ServiceAt(msgspec.Struct, tag=15, array_like=True, frozen=True):
    """Where a service of this host is, or why it cannot be had."""

    ticket: str
    address: str
    problem: str


class OutputSeen(msgspec.Struct, tag=8, array_like=True, frozen=True):
    """This many bytes of output were shown; the agent may send as many again."""

    size_bytes: int


class SetRequest(msgspec.Struct, tag=17, array_like=True, frozen=True):
    """Write a word into the task page of a process, where it finds what is asked of it."""

    id: str
    word: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class RecordsSeen(msgspec.Struct, tag=18, array_like=True, frozen=True):
    """This many bytes of records were handled; the agent may send as many again."""

    size_bytes: int


class FlushRecords(msgspec.Struct, tag=19, array_like=True, frozen=True):
    """Send all records that processes of the sender have written so far; answered by `RecordsFlushed` after them."""

    number: int


class Ping(msgspec.Struct, tag=9, array_like=True, frozen=True):
    """A heartbeat, answered by `Pong`."""


class ShutdownMessage(msgspec.Struct, tag=10, array_like=True, frozen=True):
    """End every process of the sender; an agent whose launcher sends this ends itself."""


class AgentUp(msgspec.Struct, tag=20, array_like=True, frozen=True):
    """An agent is ready."""

    pid: Pid
    host: str
    ip: str = ""
    """The address at which other hosts reach processes of this one; "" if only the agent can be reached."""
    blobs: str = ""
    """Address at which other agents fetch blobs; "" if they cannot."""
    environment: dict[str, str] | None = None
    """The variables that its processes inherit, if the launcher is on this host; other hosts do not send them."""


class Started(msgspec.Struct, tag=21, array_like=True, frozen=True):
    """A process is running (its link to the owner may not be up yet)."""

    id: str
    pid: Pid


class NotStarted(msgspec.Struct, tag=22, array_like=True, frozen=True):
    """A process could not be started."""

    id: str
    reason: str
    limit: bool = False
    """Whether the host has as many processes as it may."""
    by_engine: bool = False
    """Whether the engine cannot host it, so that another one of its kind would not start either."""


class Exited(msgspec.Struct, tag=23, array_like=True, frozen=True):
    """A process is gone, with everything known of the cause."""

    id: str
    pid: int
    exit_code: int
    """As in the standard library: negative numbers are signals."""
    out_of_memory: str
    ended_by: str
    """Why the agent itself ended it ("" if it did not): a time limit, a stop that lasted, the owner's request."""
    timed_out: bool
    """Whether its task exceeded the time limit."""
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


class Records(msgspec.Struct, tag=39, array_like=True, frozen=True):
    """Bytes from the record pipe of a process, in the order in which they were written."""

    id: str
    """A process that the receiver has started: the one that wrote, or the one whose session started that one."""
    source: str
    """The process that wrote."""
    data: bytes
    is_last: bool = False
    """Whether that process has ended, so that nothing follows."""


class RecordsFlushed(msgspec.Struct, tag=41, array_like=True, frozen=True):
    """The answer to `FlushRecords`."""

    number: int


class Sample(msgspec.Struct, tag=26, array_like=True, frozen=True):
    """The resource use of one process."""

    id: str
    memory_bytes: int
    cpu_s: float
    state: str
    """The kernel's letter for what it does; see proc(5)."""


class Samples(msgspec.Struct, tag=27, array_like=True, frozen=True):
    """The resource use of the processes of a host."""

    samples: list[Sample]


class Pong(msgspec.Struct, tag=28, array_like=True, frozen=True):
    """The answer to `Ping`."""


class HostEvent(msgspec.Struct, tag=29, array_like=True, frozen=True):
    """Something happened to the host itself; described in text."""

    text: str


class Draining(msgspec.Struct, tag=31, array_like=True, frozen=True):
    """This host is about to be taken away: give it nothing new."""

    why: str
    left_s: float
    """Seconds that running processes still get."""


class NeedWay(msgspec.Struct, tag=32, array_like=True, frozen=True):
    """A process cannot reach another host directly; the process that shows the ticket is connected with it."""

    ticket: str
    to: str
    """The address that it wants to reach."""


class RelayAt(msgspec.Struct, tag=33, array_like=True, frozen=True):
    """Where the relay is at which two sides can be joined."""

    ticket: str
    ip: str
    port: int


class Met(msgspec.Struct, tag=34, array_like=True, frozen=True):
    """Two sides were joined at our relay."""

    ticket: str


class NeedService(msgspec.Struct, tag=35, array_like=True, frozen=True):
    """A process needs the service of its host that runs this entry; answered by `ServiceAt`."""

    ticket: str
    entry: str
    unanswered: str = ""
    """The address at which it does not answer any more."""


class NeedToken(msgspec.Struct, tag=38, array_like=True, frozen=True):
    """A process wants to call the service at an address, and needs the token for it; answered by `TokenIs`."""

    ticket: str
    address: str
    id: str = ""
    """The process that asks; the agent, which knows, sets it for the launcher."""


class TokenIs(msgspec.Struct, tag=16, array_like=True, frozen=True):
    """The token that was asked for, or why there is none."""

    ticket: str
    token: str
    problem: str = ""

    def __repr__(self) -> str:
        return f"TokenIs({self.ticket!r}, problem={self.problem!r})"


class RetiredProcess(msgspec.Struct, array_like=True, frozen=True):
    """A process that may not connect any more."""

    id: str
    fingerprint: str = ""
    """Fingerprint of its certificate, if it had one."""
    is_cut: bool = False
    """Whether links to it are closed at once: it was struck off, or lost with its host.

    A process that has ended has closed them itself.
    """


class Retired(msgspec.Struct, tag=40, array_like=True, frozen=True):
    """Some processes are gone or struck off: sent to all that accept callers, in this protocol and in others."""

    processes: list[RetiredProcess]


class GetMade(msgspec.Struct, tag=36, array_like=True, frozen=True):
    """Ask for a blob that processes of this host make: answered by `BlobHere`, or by `Make` if it must be made."""

    id: str
    """The name of its recipe."""


class Make(msgspec.Struct, tag=37, array_like=True, frozen=True):
    """Make the blob that you asked for, and send it with `PutBlob`; others wait for it."""

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
    | SetRequest
    | RecordsSeen
    | Records
    | FlushRecords
    | RecordsFlushed
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
    | FetchBlob
    | ReadBlob
    | BlobPiece
    | BlobAbsent
    | BlobProgress
    | BlobFetched
    | BlobNotFetched
)
PEER = Codec(ReadBlob | BlobPiece | BlobAbsent)
"""The protocol between agents. It has no message that starts, ends or asks for anything else."""


class AgentBoot(msgspec.Struct, frozen=True):
    """What an agent needs to know before it can dial; passed on its standard input."""

    run_id: str
    agent_id: str
    secret: str
    address: str
    """Address of the launcher."""
    folder: str
    """The run folder, if this is the launcher's host; else "", and the agent makes one."""
    launcher_pid: int
    """Process id of the launcher on this host; 0 if it is on another one."""
    max_processes: int
    log_folder: str = ""
    certificate: Certificate | None = None
    launcher_secret: str = ""
    """The secret that the launcher proves if it has to dial."""
    launcher_ticket: str = ""
    """The ticket that the launcher shows at the relay then."""
    launcher_fingerprint: str = ""
    door: bool = False
    """Whether to wait for the launcher at the socket that the engine has made, because the engine carries the
    connections.
    """
    service_key: str = ""
    """The key from which the keys of services on this host follow; see `transport/tokens.py`."""
    lease_s: float = 0.0
    """Lease in seconds: a launcher on another host that is silent for longer is gone; 0 for one on this host."""

    def __repr__(self) -> str:
        return f"AgentBoot(run_id={self.run_id!r}, agent_id={self.agent_id!r}, address={self.address!r})"


class ForkRequest(msgspec.Struct, frozen=True, array_like=True):
    """One process to fork, as it is sent to the fork server (with descriptors: stdout, stderr, page, records)."""

    start: StartProcess
    run_id: str
    agent_address: str
    agent_pid: int
    host: str
    service_key: str = ""
    """Key of the socket at which it may serve others."""
    host_id: str = ""
    """The agent's name in a run of several hosts; "" if there is one."""
    ip: str = ""


class ForkReply(msgspec.Struct, frozen=True, array_like=True):
    """The result of a fork; pid 0 with a reason when it failed."""

    id: str
    pid: int
    reason: str = ""
