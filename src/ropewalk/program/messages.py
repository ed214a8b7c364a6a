"""What the launcher of a program and the processes of its nodes say to each other.

launcher ──▶ host    StartUnit StopUnit Sizes Placed Retired RendezvousAt AskStatus AskWaits EndCall StateAnswer
host ──▶ launcher    UnitUp NodeReady WaitsForStop UnitEnded Locate OfferRendezvous StopProgram HostStatus Note
                     SaveState FindState ReadState SetStateAside CallsHeldUp WaitsAre

A unit is what lives and dies together: one node, or the nodes of a `Colocate` of
threads. A host is the process that units run in; in processes mode it has one unit.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ropewalk.calls.waits import LaneWaits
from ropewalk.processes.messages import Retired
from ropewalk.program.checkpoints import CheckpointFile
from ropewalk.transport.blobs import BlobRef
from ropewalk.transport.failures import Failure
from ropewalk.transport.link import Codec

#: The number of a question whose answer is only noted.
NOBODY_WAITS = 0


class UnitName(msgspec.Struct, array_like=True, frozen=True):
    """One start of one replica of a unit."""

    unit: str
    replica: int
    generation: int


class NodeStart(msgspec.Struct, array_like=True, frozen=True):
    """A node of a unit; its pickle has `num_buffers` buffers."""

    name: str
    replicas: int
    attempt: int
    """How often this replica failed before."""
    checkpoint_s: float | None
    num_buffers: int


class StartUnit(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Run a unit. The parts are those of the definitions of `__main__`, then of the nodes, each with its buffers."""

    name: UnitName
    run_id: str
    program: str
    host_id: str
    """What this host calls itself when it dials services."""
    key: str
    """Who shows the token that is made with it may call services here."""
    checkpoints: str
    """The folder in which services keep their state; empty: the launcher keeps it for them."""
    main: bytes
    """Facts of the launcher's `__main__`."""
    definitions: list[tuple[str, int]]
    """Names, with the number of their buffers."""
    nodes: list[NodeStart]
    blobs: dict[int, BlobRef] = {}
    """What is not among the parts, because the host has it for all its processes: 0 the definitions, 1 the first node,
    and so on."""


class StopUnit(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """Ask a unit to end within so many seconds."""

    name: UnitName
    why: str
    grace_s: float
    program_stays: bool = False
    """Whether the program goes on, and with it those who call the unit's services."""


class Sizes(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """A node has so many replicas."""

    name: str
    replicas: int


class Placed(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """Where a replica of a service is now, as in `calls.directory.Place`."""

    name: str
    replica: int
    state: str
    address: str
    target: int
    token: str
    generation: int
    cause: str


class RendezvousAt(msgspec.Struct, tag=5, array_like=True, frozen=True):
    """Where the ranks of a unit meet."""

    unit: str
    generation: int
    host: str
    """Of the first rank: the id of its agent, in a run of several hosts."""
    address: str
    port: int
    local_rank: int = 0
    """Which of the ranks on its host the one that is told this is, from 0."""
    local_size: int = 1
    """How many ranks are on its host."""


class AskStatus(msgspec.Struct, tag=6, array_like=True, frozen=True):
    """What are your nodes doing? Answered by `HostStatus`."""

    number: int


class StateAnswer(msgspec.Struct, tag=7, array_like=True, frozen=True):
    """The answer to `SaveState`, `FindState`, `SetStateAside`, and to `ReadState` with the bytes as its part."""

    number: int
    files: list[CheckpointFile] = []
    """What `FindState` found."""
    failure: Failure | None = None


class UnitUp(msgspec.Struct, tag=20, array_like=True, frozen=True):
    """The process runs, and services in it can be called at this address."""

    name: UnitName
    address: str


class NodeReady(msgspec.Struct, tag=21, array_like=True, frozen=True):
    """A node works; a service can be called, as this target."""

    name: UnitName
    node: str
    target: int


class UnitEnded(msgspec.Struct, tag=22, array_like=True, frozen=True):
    """All nodes of a unit have returned, or one raised."""

    name: UnitName
    node: str
    """The node that raised first; empty if none did."""
    failure: Failure | None


class Locate(msgspec.Struct, tag=23, array_like=True, frozen=True):
    """Tell me where this service is, now and whenever it changes."""

    name: str


class OfferRendezvous(msgspec.Struct, tag=24, array_like=True, frozen=True):
    """The first rank's process says where the ranks may meet."""

    at: RendezvousAt


class StopProgram(msgspec.Struct, tag=25, array_like=True, frozen=True):
    """A node wants the whole program to stop."""

    reason: str


class CallStatus(msgspec.Struct, array_like=True, frozen=True):
    """A call that runs."""

    label: str
    running_s: float
    at: str = ""
    """Which line of the user's it has come to, such as "store.py:12 in push"; empty if that cannot be seen."""


class NodeCalls(msgspec.Struct, array_like=True, frozen=True):
    """The calls of one node."""

    unit: UnitName
    node: str
    num_done: int
    num_waiting: int
    running: list[CallStatus]
    at: str = ""
    """Which line of the user's the node's own thread has come to."""
    stopping: bool = False
    """Whether the node has been asked to end."""


class HostStatus(msgspec.Struct, tag=26, array_like=True, frozen=True):
    """The answer to `AskStatus`."""

    number: int
    nodes: list[NodeCalls]


class Note(msgspec.Struct, tag=27, array_like=True, frozen=True):
    """Something that a person should know."""

    text: str


class SaveState(msgspec.Struct, tag=28, array_like=True, frozen=True):
    """The next piece of a checkpoint of a service, which is the part; the file appears when it is kept."""

    number: int
    name: UnitName
    node: str
    step: Literal["begin", "go on", "keep", "drop"]


class FindState(msgspec.Struct, tag=29, array_like=True, frozen=True):
    """Which checkpoints of a service are there?"""

    number: int
    name: UnitName
    node: str


class ReadState(msgspec.Struct, tag=31, array_like=True, frozen=True):
    """So many bytes of a checkpoint, please."""

    number: int
    name: UnitName
    node: str
    file: CheckpointFile
    offset: int
    size_bytes: int


class SetStateAside(msgspec.Struct, tag=32, array_like=True, frozen=True):
    """A checkpoint is damaged, and not to be used again."""

    number: int
    name: UnitName
    node: str
    file: CheckpointFile


StateOrder = SaveState | FindState | ReadState | SetStateAside


class WaitsForStop(msgspec.Struct, tag=30, array_like=True, frozen=True):
    """All nodes of a unit that might end by themselves wait until they are asked to end."""

    name: UnitName


class CallsHeldUp(msgspec.Struct, tag=33, array_like=True, frozen=True):
    """Calls wait in this unit's process for calls that wait for others; said again while it is so."""

    name: UnitName


class AskWaits(msgspec.Struct, tag=8, array_like=True, frozen=True):
    """Which of the calls in your process wait? Answered by `WaitsAre` in the name of this unit."""

    number: int
    name: UnitName


class WaitsAre(msgspec.Struct, tag=34, array_like=True, frozen=True):
    """The answer to `AskWaits`."""

    number: int
    name: UnitName
    lanes: list[LaneWaits]


class EndCall(msgspec.Struct, tag=9, array_like=True, frozen=True):
    """End a call that waits for its turn, as it is part of a circle; if it runs by now, there was none."""

    target: int
    key: int
    words: str
    circle: list[str]


PROGRAM = Codec(
    StartUnit
    | StopUnit
    | Sizes
    | Placed
    | Retired
    | RendezvousAt
    | AskStatus
    | StateAnswer
    | UnitUp
    | NodeReady
    | WaitsForStop
    | CallsHeldUp
    | AskWaits
    | WaitsAre
    | EndCall
    | UnitEnded
    | Locate
    | OfferRendezvous
    | StopProgram
    | HostStatus
    | Note
    | SaveState
    | FindState
    | ReadState
    | SetStateAside
)
