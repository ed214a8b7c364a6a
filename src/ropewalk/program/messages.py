"""The messages between the launcher of a program and the processes of its nodes.

launcher ──▶ host    StartUnit StopUnit Sizes Placed Retired RendezvousAt AskStatus AskWaits EndCall StateAnswer
host ──▶ launcher    UnitUp NodeReady WaitsForStop UnitEnded Locate OfferRendezvous StopProgram HostStatus Note
                     SaveState FindState ReadState SetStateAside CallsHeldUp WaitsAre

A unit starts and ends as a whole: one node, or the nodes of a `Colocate` of threads. A host is the process in which
units run; in processes mode it has one unit.
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

NOBODY_WAITS = 0
"""The number of a request whose answer is recorded without a waiting thread."""


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
    """Number of times that this replica failed before."""
    checkpoint_s: float | None
    num_buffers: int


class StartUnit(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Runs a unit. The parts are those of the definitions of `__main__`, then of the nodes, each with its buffers."""

    name: UnitName
    run_id: str
    program: str
    host_id: str
    """The id with which this host identifies itself when it dials services."""
    key: str
    """Makes the tokens of processes that may call services here."""
    checkpoints: str
    """The folder of the services' checkpoints; empty if the launcher keeps them."""
    main: bytes
    """A description of the launcher's `__main__`."""
    definitions: list[tuple[str, int]]
    """Names, with the number of their buffers."""
    nodes: list[NodeStart]
    blobs: dict[int, BlobRef] = {}
    """The parts that are omitted because the host has them for all its processes: 0 the definitions, 1 the first node,
    and so on."""


class StopUnit(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """Asks a unit to end within `grace_s` seconds."""

    name: UnitName
    why: str
    grace_s: float
    program_stays: bool = False
    """Whether the program, and with it the callers of the unit's services, goes on."""


class Sizes(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """The number of replicas of a node."""

    name: str
    replicas: int


class Placed(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """The location of a replica of a service, as in `calls.directory.ReplicaLocation`."""

    name: str
    replica: int
    state: str
    address: str
    target: int
    token: str
    generation: int
    cause: str


class RendezvousAt(msgspec.Struct, tag=5, array_like=True, frozen=True):
    """The rendezvous address of the ranks of a unit."""

    unit: str
    generation: int
    host: str
    """The first rank's host: the id of its agent, in a run of several hosts."""
    address: str
    port: int
    local_rank: int = 0
    """The receiver's rank on its host, from 0."""
    local_size: int = 1
    """Number of ranks on its host."""
    rank: int = 0
    """The receiver's rank in the group."""
    group_rank: int = 0
    """The number of its host, from 0."""
    num_groups: int = 1
    """Number of hosts."""
    visible_gpus: str = ""
    """CUDA_VISIBLE_DEVICES for the receiver; empty to leave what it has."""
    max_restarts: int = 0
    """Number of restarts that the group's rule allows."""


class AskStatus(msgspec.Struct, tag=6, array_like=True, frozen=True):
    """Asks for the state of a host's nodes; answered by `HostStatus`."""

    number: int


class StateAnswer(msgspec.Struct, tag=7, array_like=True, frozen=True):
    """The answer to `SaveState`, `FindState`, `SetStateAside`, and to `ReadState` with the bytes as its part."""

    number: int
    files: list[CheckpointFile] = []
    """The files found by `FindState`."""
    failure: Failure | None = None


class UnitUp(msgspec.Struct, tag=20, array_like=True, frozen=True):
    """The process runs, and its services can be called at this address."""

    name: UnitName
    address: str
    gpus: str = ""
    """The GPUs that it was given, as in CUDA_VISIBLE_DEVICES."""


class NodeReady(msgspec.Struct, tag=21, array_like=True, frozen=True):
    """A node is ready; a service can be called, as this target."""

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
    """Asks for the location of a service, now and whenever it changes."""

    name: str


class OfferRendezvous(msgspec.Struct, tag=24, array_like=True, frozen=True):
    """The first rank's process offers a rendezvous address."""

    at: RendezvousAt


class StopProgram(msgspec.Struct, tag=25, array_like=True, frozen=True):
    """A node asks to stop the whole program."""

    reason: str


class CallStatus(msgspec.Struct, array_like=True, frozen=True):
    """A running call."""

    label: str
    running_s: float
    at: str = ""
    """The line of user code that it has reached, such as "store.py:12 in push"; empty if that cannot be determined."""


class NodeCalls(msgspec.Struct, array_like=True, frozen=True):
    """The calls of one node."""

    unit: UnitName
    node: str
    num_done: int
    num_waiting: int
    running: list[CallStatus]
    at: str = ""
    """The line of user code that the node's own thread has reached."""
    stopping: bool = False
    """Whether the node was asked to end."""
    busy_s: float = 0.0
    """Seconds that the calls that are done took in sum."""
    calls_to: dict[str, int] = {}
    """The number of calls that the node has made to each service, by name of the service."""


class HostStatus(msgspec.Struct, tag=26, array_like=True, frozen=True):
    """The answer to `AskStatus`."""

    number: int
    nodes: list[NodeCalls]


class Note(msgspec.Struct, tag=27, array_like=True, frozen=True):
    """A message for the user."""

    text: str


class SaveState(msgspec.Struct, tag=28, array_like=True, frozen=True):
    """The next piece of a service's checkpoint, as the message's part; the file appears once all of it is kept."""

    number: int
    name: UnitName
    node: str
    step: Literal["begin", "go on", "keep", "drop"]


class FindState(msgspec.Struct, tag=29, array_like=True, frozen=True):
    """Asks for the checkpoints of a service."""

    number: int
    name: UnitName
    node: str


class ReadState(msgspec.Struct, tag=31, array_like=True, frozen=True):
    """Asks for a number of bytes of a checkpoint."""

    number: int
    name: UnitName
    node: str
    file: CheckpointFile
    offset: int
    size_bytes: int


class SetStateAside(msgspec.Struct, tag=32, array_like=True, frozen=True):
    """A checkpoint is damaged and must not be used again."""

    number: int
    name: UnitName
    node: str
    file: CheckpointFile


StateOrder = SaveState | FindState | ReadState | SetStateAside


class WaitsForStop(msgspec.Struct, tag=30, array_like=True, frozen=True):
    """All nodes of a unit that might end by themselves wait until they are asked to end."""

    name: UnitName


class CallsHeldUp(msgspec.Struct, tag=33, array_like=True, frozen=True):
    """Calls wait in this unit's process for calls that wait for others; repeated while that is so."""

    name: UnitName


class AskWaits(msgspec.Struct, tag=8, array_like=True, frozen=True):
    """Asks which calls wait in the process of a unit; answered by `WaitsAre` in the name of this unit."""

    number: int
    name: UnitName


class WaitsAre(msgspec.Struct, tag=34, array_like=True, frozen=True):
    """The answer to `AskWaits`."""

    number: int
    name: UnitName
    lanes: list[LaneWaits]


class EndCall(msgspec.Struct, tag=9, array_like=True, frozen=True):
    """Ends a call that waits for its turn as part of a cycle; ignored if it runs by now, because there was no cycle."""

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
