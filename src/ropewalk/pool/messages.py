"""What a pool and its workers say to each other on data links.

pool ──▶ worker    BeginWorker ConstantMessage Setup Tasks Forget StopWorker
worker ──▶ pool    WorkerReady SetupFailed TasksDone Skipped
"""

from __future__ import annotations

from typing import Any

import msgspec

from ropewalk.transport.blobs import BlobRef
from ropewalk.transport.failures import Failure
from ropewalk.transport.link import Codec


class CallKind:
    """How an item of a unit becomes a call."""

    #: f(item) · f(*item) · f(*item[0], **item[1]) of one `apply` · f(*item) of one `apply`
    ONE, STAR, APPLY, APPLY_PLAIN = range(4)
    #: The last three for an executor, where `sys.exit` in a task is an answer and not the end of its worker.
    EXECUTOR_STAR, EXECUTOR_APPLY, EXECUTOR_PLAIN = range(4, 7)
    #: Kinds whose task has no position in a map.
    SINGLE = (APPLY, APPLY_PLAIN, EXECUTOR_APPLY, EXECUTOR_PLAIN)
    #: Kinds whose item is arguments and keyword arguments.
    WITH_KEYWORDS = (APPLY, EXECUTOR_APPLY)
    #: Kinds of an executor.
    EXIT_IS_ANSWER = (EXECUTOR_STAR, EXECUTOR_APPLY, EXECUTOR_PLAIN)


class BeginWorker(msgspec.Struct, tag=0, array_like=True, frozen=True):
    """The first message: what user code must find when it is loaded."""

    main: bytes
    """The facts of the sender's `__main__`."""
    authkey: bytes
    """multiprocessing's key of the sender, so that its managers' proxies work in the worker."""
    identity: tuple[int, ...]
    """Of the worker, as multiprocessing numbers processes."""
    parent_name: str
    """What multiprocessing calls the sender."""
    parent_pid: int


class Setup(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Call the initializer, if there is one, and be ready. Ids of constants that were sent before."""

    initializer: str
    arguments: str


class ConstantMessage(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """Code or a value that many tasks need: in the parts, in a memory file that comes along, or a blob of the agent."""

    number: int
    """What it is called on this link from now on; its id is long."""
    id: str
    blob: BlobRef | None
    writable: bool
    """Whether the worker gets memory of its own for it."""


class UnitHeader(msgspec.Struct, array_like=True, frozen=True):
    """Some tasks that were pickled together, or a span of them."""

    seq: int
    """The worker's number of the first task to run."""
    code: int
    """The number of the constant that is called."""
    kind: int
    start: int
    stop: int
    """The span of the unit's items to run."""
    first_index: int
    """Position in its map of the unit's first item."""
    seed: int
    span: tuple[int, int, int] | None
    """The items, if they are those of a range: its start, stop and step. There are no parts then."""
    num_parts: int
    shared: tuple[int, ...]
    """Lengths of the parts if they are in a memory file."""
    patient: bool
    """Whether results may wait in the worker until the last one of them is there."""


class Tasks(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """Work, in order."""

    units: list[UnitHeader]


class Forget(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """Constants that are not needed any more, by their numbers."""

    numbers: list[int]


class StopWorker(msgspec.Struct, tag=5, array_like=True, frozen=True):
    """Finish what you have and end."""


class WorkerReady(msgspec.Struct, tag=10, array_like=True, frozen=True):
    """The initializer has returned."""


class SetupFailed(msgspec.Struct, tag=11, array_like=True, frozen=True):
    """The initializer raised."""

    failure: Failure


class TasksDone(msgspec.Struct, tag=12, array_like=True, frozen=True):
    """Results of the tasks from `first` on."""

    first: int
    elapsed_ns: int
    values: list[Any]
    """Numbers, truth values and None as they are; others as bytes, of a kind that `nested` tells."""
    nested: dict[int, int]
    """Position in `values`: PICKLED or ERROR. If there are parts, they are the bytes and buffers of the last one."""
    shared: tuple[int, ...]
    """Lengths of the parts if they are in a memory file."""


class Skipped(msgspec.Struct, tag=13, array_like=True, frozen=True):
    """Tasks that were recalled before they started, and did not run."""

    first: int
    count: int


POOL = Codec(
    BeginWorker
    | Setup
    | ConstantMessage
    | Tasks
    | Forget
    | StopWorker
    | WorkerReady
    | SetupFailed
    | TasksDone
    | Skipped
)
ENCODE = msgspec.msgpack.Encoder().encode
