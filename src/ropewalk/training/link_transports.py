"""What `ProcessLinks` asks of a way in which messages travel between the workers of a plan.

    ProcessLinks ── send(tree, note) ─▶ WorkerLink ═══ memory, calls ... ═══▶ LinkTransport.arrived() ─▶ ProcessLinks

There are two: shared memory (`near_links.py`) and calls (`far_links.py`). Another one is a module with a
`LinkTransport`, and an entry in `links.TRANSPORTS`. It may send trees as they are, from device to device, and need not
encode them. It wakes the receiver by the doorbell, or by a descriptor of its own, such as a socket's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from ropewalk.exchange.tensor_codec import TensorCodec, note_of
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.transport.slots import Announced, Doorbell, OpenFile


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a worker's links; sent to all other workers."""

    epoch: int
    host: str
    """Workers on the same host share memory."""
    doorbell: OpenFile
    """The worker's doorbell."""
    addresses: Mapping[str, Any]
    """What the others must know to reach it, by transport."""


class FarMessage(NamedTuple):
    """The argument of `deliver` on a worker of another host."""

    epoch: int
    sender: PlanWorker
    blob: Tensor
    """An encoded tree: a tensor of bytes (uint8)."""


Deliver = Callable[[FarMessage], "Future[None]"]
"""Calls `deliver` of a worker without waiting for the answer."""


class LinkOwner(NamedTuple):
    """The worker whose links a transport serves, and what has come for it."""

    epoch: int
    me: PlanWorker
    plan: Plan
    codec: TensorCodec
    doorbell: Doorbell
    """Wakes the worker; to be rung when something has arrived, unless the sender has rung it."""
    announced: list[Announced]
    """Messages in the memory of others of which the doorbell has told."""
    delivered: deque[FarMessage]
    """Messages of this epoch that came by calls of `deliver`; any thread adds to them."""


class LinkPeer(NamedTuple):
    """A worker to which a link is made."""

    worker: PlanWorker
    address: Any
    """What it has told of itself for this transport."""
    doorbell: OpenFile
    """Its doorbell, for workers of its host."""
    is_here: bool
    """Whether it is on the same host."""
    deliver: Deliver | None
    """Calls its `deliver`, if it can be called."""


class Arrival(Protocol):
    """A message that has arrived."""

    @property
    def note(self) -> bytes | memoryview:
        """The note that it was sent with."""
        ...

    def tree(self) -> Any:
        """Return what was sent; its tensors are on the device of the receiver."""
        ...


class WorkerLink(Protocol):
    """The way from this worker to another one. The main thread of the worker uses it."""

    def send(self, tree: Any, note: bytes) -> int:
        """Send a tree and return its size in bytes; never waits. Its tensors may change afterwards."""
        ...

    @property
    def lost(self) -> str:
        """Why messages cannot be sent any more; empty while they can."""
        ...

    @property
    def is_behind(self) -> bool:
        """Whether something is not sent yet, and `flush` is to be called when the descriptor can be written to."""
        ...

    def fileno(self) -> int:
        """The descriptor to poll while the link `is_behind`."""
        ...

    def flush(self) -> None:
        """Send more of what was not sent yet."""
        ...

    def close(self) -> None:
        """Release everything; may be called twice."""
        ...


class LinkTransport(Protocol):
    """One way of travelling, for one worker in one epoch; made with a `LinkOwner`."""

    def address(self) -> Any:
        """What others must know to reach this worker; can be pickled."""
        ...

    def link(self, peer: LinkPeer) -> WorkerLink | None:
        """Connect to another worker; None if it is not reached in this way.

        Raises:
            PeerLost: the worker is gone.
        """
        ...

    def fileno(self) -> int:
        """A descriptor that can be read while messages wait there; -1 if the doorbell of the owner is rung for them."""
        ...

    def arrived(self) -> Iterable[Arrival]:
        """Return the messages that have arrived since the last call; never waits."""
        ...

    def close(self) -> None:
        """Release everything; may be called twice. Received tensors stay valid."""
        ...


class EncodedArrival(NamedTuple):
    """A message that arrived as encoded bytes."""

    memory: memoryview
    codec: TensorCodec

    @property
    def note(self) -> memoryview:
        return note_of(self.memory)

    def tree(self) -> Any:
        return self.codec.decode(self.memory)


__all__ = [
    "Arrival",
    "Deliver",
    "EncodedArrival",
    "Endpoint",
    "FarMessage",
    "LinkOwner",
    "LinkPeer",
    "LinkTransport",
    "WorkerLink",
]
