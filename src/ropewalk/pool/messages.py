"""The messages between a pool and its workers, which travel on data links.

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

    ONE, STAR, APPLY, APPLY_PLAIN = range(4)
    """f(item) · f(*item) · f(*item[0], **item[1]) of one `apply` · f(*item) of one `apply`"""
    EXECUTOR_STAR, EXECUTOR_APPLY, EXECUTOR_PLAIN = range(4, 7)
    """The last three kinds for an executor, where `sys.exit` in a task becomes its result and does not end the worker.
    """
    SINGLE = (APPLY, APPLY_PLAIN, EXECUTOR_APPLY, EXECUTOR_PLAIN)
    """Kinds whose task has no position in a map."""
    WITH_KEYWORDS = (APPLY, EXECUTOR_APPLY)
    """Kinds whose item holds arguments and keyword arguments."""
    EXIT_IS_ANSWER = (EXECUTOR_STAR, EXECUTOR_APPLY, EXECUTOR_PLAIN)
    """Kinds that an executor uses."""


class BeginWorker(msgspec.Struct, tag=0, array_like=True, frozen=True):
    """The first message to a worker: what user code must find when it is loaded."""

    main: bytes
    """A description of the sender's `__main__`."""
    authkey: bytes
    """multiprocessing's key of the sender, so that proxies of its managers work in the worker."""
    identity: tuple[int, ...]
    """The worker's identity, as multiprocessing numbers processes."""
    parent_name: str
    """The sender's name in multiprocessing."""
    parent_pid: int


class Setup(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Call the initializer, if there is one, and become ready. The fields are ids of constants sent before."""

    initializer: str
    arguments: str


class ConstantMessage(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """Code or a value that many tasks need: in the parts, in a memory file sent along, or in a blob of the agent."""

    number: int
    """The constant's number on this link from now on; its id is long."""
    id: str
    blob: BlobRef | None
    writable: bool
    """Whether the worker gets memory of its own for it."""


class UnitHeader(msgspec.Struct, array_like=True, frozen=True):
    """The header of some tasks that were pickled together, or of a span of them."""

    seq: int
    """The worker's number of the first task to run."""
    code: int
    """The number of the constant to call."""
    kind: int
    start: int
    stop: int
    """The end of the span of the unit's items to run."""
    first_index: int
    """Position in the map of the unit's first item."""
    seed: int
    span: tuple[int, int, int] | None
    """The start, stop and step of the items if they are those of a range; there are no parts then."""
    num_parts: int
    shared: tuple[int, ...]
    """Lengths in bytes of the parts, if they are in a memory file."""
    patient: bool
    """Whether results may wait in the worker until all tasks of the unit have ended."""


class Tasks(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """Tasks to run, in order."""

    units: list[UnitHeader]


class Forget(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """Forget constants that are not needed any more, by their numbers."""

    numbers: list[int]


class StopWorker(msgspec.Struct, tag=5, array_like=True, frozen=True):
    """Finish the tasks you hold, and end."""


class WorkerReady(msgspec.Struct, tag=10, array_like=True, frozen=True):
    """The initializer has returned, and the worker takes tasks."""


class SetupFailed(msgspec.Struct, tag=11, array_like=True, frozen=True):
    """The initializer raised an exception."""

    failure: Failure


class TasksDone(msgspec.Struct, tag=12, array_like=True, frozen=True):
    """The results of the tasks from `first` on."""

    first: int
    elapsed_ns: int
    values: list[Any]
    """Numbers, truth values and None as they are; other values as bytes, of a kind that `nested` gives."""
    nested: dict[int, int]
    """PICKLED or ERROR by position in `values`. If there are parts, they are the bytes and buffers of the last value.
    """
    shared: tuple[int, ...]
    """Lengths in bytes of the parts, if they are in a memory file."""


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
