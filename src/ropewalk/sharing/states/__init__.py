"""The states of shared objects: pure state machines that decide which calls end, and with which outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ropewalk.sharing.states.barrier import BarrierState
from ropewalk.sharing.states.box import BoxState
from ropewalk.sharing.states.condition import ConditionState
from ropewalk.sharing.states.event import EventState
from ropewalk.sharing.states.lock import LockState
from ropewalk.sharing.states.memory import MemoryState
from ropewalk.sharing.states.pipe import PipeState
from ropewalk.sharing.states.queue import QueueState
from ropewalk.sharing.states.semaphore import SemaphoreState
from ropewalk.sharing.states.waiting import SharedState

KINDS: Mapping[str, Callable[..., SharedState]] = {
    "queue": QueueState,
    "pipe": PipeState,
    "lock": LockState,
    "semaphore": SemaphoreState,
    "condition": ConditionState,
    "event": EventState,
    "barrier": BarrierState,
    "memory": MemoryState,
    "box": BoxState,
}
"""The classes of states that a depot can make, by the kind that a client asks for."""
