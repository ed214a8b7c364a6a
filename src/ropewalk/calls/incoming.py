"""Calls at the serving side: they wait for a turn, run in it, and are answered.

Call ──▶ Incoming ──turn──▶ run ──▶ replies: (the call, the message that answers it, its parts)

Turn ─┬─ Incoming ── ServedGenerator   one call; a generator has a turn for each item
      ├─ CallBatch                     several calls that were merged into one
      └─ HeldTurn                      the turn itself, for an internal thread, such as one that takes a checkpoint
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ropewalk.calls.call_context import CallContext, current, forget_watchers, new_key
from ropewalk.calls.markers import MethodFacts
from ropewalk.calls.messages import Answer, Call, Gone, OnceCall, Raised, StreamItem
from ropewalk.calls.once import CallName, Done, OnceTable
from ropewalk.calls.payloads import PackedValue, pack_value, unpack
from ropewalk.calls.turns import FREE, CallLane
from ropewalk.errors import CallCancelled, DeadlineExceeded, ServiceLost
from ropewalk.transport.failures import failure_of, not_sendable
from ropewalk.transport.link import Link, Received

if TYPE_CHECKING:
    from ropewalk.calls.batching import Gathering

Reply = tuple["Incoming", Any, PackedValue | None]
"""A call, the message that answers it (None if it was given up), and the parts of that message."""


@dataclass(slots=True, eq=False)
class CallPolicy:
    """How one method of one object is called."""

    method: Callable[..., Any]
    facts: MethodFacts
    label: str
    lane: CallLane[Turn]
    batch: Gathering | None = None
    lasts: bool = False
    """Whether its last call took long or waited. A free or brief method then runs in a thread, so that the loop need
    not be taken over."""

    @property
    def in_thread(self) -> bool:
        """Whether its calls run outside of the loop from the start."""
        return self.lasts or (self.facts.concurrency > 0 and not self.facts.brief)


class Served:
    """One object that is served."""

    def __init__(self, target: int, obj: object, methods: Mapping[str, MethodFacts], label: str) -> None:
        self.target = target
        self.label = label
        self.lock: threading.Lock = threading.Lock()
        """Held briefly wherever its lanes and batches change."""
        self.lane: CallLane[Turn] = CallLane()
        self.num_done = 0
        self.busy_s: float = 0.0
        """Seconds that the calls that are done took in sum, without those that take no turns."""
        self.closed = ""
        self.once: OnceTable = OnceTable()
        """The record of calls that run once."""
        self.once_running: dict[CallName, OnceIncoming] = {}
        self.before_waiting: Callable[[], object] = lambda: None
        """Called by a method that is about to wait."""
        self.ways: dict[str, CallPolicy] = {}
        for name, facts in methods.items():
            limit = FREE if facts.free else facts.concurrency
            lane = CallLane[Turn](limit) if limit else self.lane
            self.ways[name] = CallPolicy(getattr(obj, name), facts, f"{label}.{name}", lane)
        self.plain_ways: dict[str, CallPolicy] = {
            name: way
            for name, way in self.ways.items()
            if not (way.facts.streams or way.facts.batch_size or way.facts.concurrency)
        }
        """The methods without marks that affect turns; their calls run on the loop unless the last one took long."""

    @property
    def lanes(self) -> list[CallLane[Turn]]:
        """Each of its lanes once, its own first."""
        return [self.lane, *(way.lane for way in self.ways.values() if way.lane is not self.lane)]

    @property
    def running(self) -> list[Turn]:
        """The calls that run; each has a `label`, and `since`, the time at which it began."""
        return [call for lane in self.lanes for call in list(lane.running.values())]

    @property
    def num_waiting(self) -> int:
        """Calls that wait for their turn or for a batch."""
        gathering = sum(len(way.batch) for way in self.ways.values() if way.batch)
        return sum(len(lane.waiting) for lane in self.lanes) + gathering


class Turn(CallContext):
    """Something that runs when it has its turn at an object."""

    __slots__ = ("in_thread", "lane", "served", "since", "when_over")
    served: Served
    lane: CallLane[Turn]
    in_thread: bool
    """Whether it runs outside of the loop from the start."""
    since: float
    """Monotonic time at which it began."""
    when_over: Callable[[], object] | None
    """Called on the loop after the turn, or when it was refused."""

    @property
    def calls(self) -> Sequence[Incoming]:
        """The calls that it answers."""
        return ()

    @property
    def ending(self) -> str:
        return self.served.closed

    @property
    def num_ended(self) -> int:
        """Number of calls that ended with this turn."""
        return len(self.calls)

    def run(self) -> Sequence[Reply]:
        """Run it, and return the replies to send; raises nothing."""
        raise NotImplementedError


class Incoming(Turn):
    """A call that has arrived: its method and arguments, and the link for its answer."""

    __slots__ = ("link", "number", "received", "way")

    once: CallName | None = None
    """Its name among the calls that run once; None for any other call."""

    def __init__(self, served: Served, way: CallPolicy, link: Link, message: Call, received: Received) -> None:
        self.chain = message.chain
        self.deadline = None if message.timeout_s is None else time.monotonic() + message.timeout_s
        self.label = way.label
        self.key = new_key()
        self.cancelled = ""
        self.served = served
        self.lane = way.lane
        self.in_thread = way.in_thread
        self.when_over = None
        self.way = way
        self.link = link
        self.number = message.number
        self.received: Received | None = received
        self.since = 0.0

    @property
    def calls(self) -> Sequence[Incoming]:
        return (self,)

    def run(self) -> Sequence[Reply]:
        return (self.answer(),)

    def answer(self) -> Reply:
        """Run it, and return the reply to send; raises nothing."""
        if self.cancelled:
            return self, None, None
        if self.deadline is not None and self.since >= self.deadline:
            return self, self.too_late(), None
        token = current.set(self)
        try:
            received, self.received = self.received, None
            message: Call = received.message  # type: ignore[union-attr]
            if message.keywords:
                args, kwargs = unpack(received, message.shared)  # type: ignore[arg-type]
                value = self.way.method(*args, **kwargs)
            elif message.shared or received.parts:  # type: ignore[union-attr]
                value = self.way.method(*unpack(received, message.shared))  # type: ignore[arg-type]
            else:
                value = self.way.method()
            return (self, Answer(self.number, ()), None) if value is None else self.reply(value, Answer)
        except BaseException as error:
            return self, self.failed(error), None
        finally:
            current.reset(token)
            forget_watchers(self)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Unpickle the arguments; called once."""
        received, self.received = self.received, None
        assert received is not None
        message: Call = received.message
        value = unpack(received, message.shared)
        return value if message.keywords else (value or (), {})

    def reply(self, value: Any, kind: type[Answer] | type[StreamItem]) -> Reply:
        """The message that carries a value to the caller, or reports that the value cannot be sent."""
        if value is None:
            return self, kind(self.number, ()), None
        try:
            packed = pack_value(self.link, value, with_code=self.way.facts.with_code, keep=bool(self.once))
        except Exception as error:
            return self, Raised(self.number, not_sendable(error, value)), None
        return self, kind(self.number, packed.shared), packed

    def failed(self, error: BaseException) -> Raised | Gone:
        """The message that carries an exception to the caller."""
        if isinstance(error, CallCancelled) and self.cancelled:
            return Gone(self.number, self.cancelled)  # which nobody reads
        if isinstance(error, CallCancelled) and self.served.closed:
            return self._ended(self.served.closed)
        return Raised(self.number, failure_of(error, *_OUR_FRAMES))

    def _ended(self, reason: str) -> Raised | Gone:
        """The message for a call that waited when the service was stopped; it may be repeated if that is safe."""
        if self.way.facts.idempotent or self.once:
            return Gone(self.number, reason)
        error = ServiceLost(
            f"{reason} while {self.label}() waited there, which may or may not have had its effect",
            service=self.served.label,
            cause=reason,
            started=True,
        )
        return Raised(self.number, failure_of(error))

    def too_late(self) -> Raised:
        """The message for a call whose deadline passed before its turn."""
        error = DeadlineExceeded(f"the deadline of {self.label} passed while it waited for its turn", call=self.label)
        return Raised(self.number, failure_of(error))


class OnceIncoming(Incoming):
    """A call that runs once, though it may arrive several times."""

    __slots__ = ("is_settled", "once", "repeats")

    def __init__(
        self, served: Served, way: CallPolicy, link: Link, message: OnceCall, received: Received, once: CallName
    ) -> None:
        Incoming.__init__(self, served, way, link, message, received)
        self.once = once
        self.is_settled = False
        """Whether its outcome was noted."""
        self.repeats: list[tuple[Link, OnceCall, Received]] = []
        """The repeated arrivals of this call while it runs."""

    def done(self, answer: Any, packed: PackedValue | None) -> Done | None:
        """The record of an answer to it; None if the call did not run."""
        if type(answer) is Raised and self.received is None:
            return Done([], answer.failure)
        if type(answer) is not Answer:
            return None
        if packed is None:
            return Done([])
        parts = packed.unfolded().parts if packed.fds else packed.parts
        return Done([bytes(part) for part in parts])


class HeldTurn(Turn):
    """A turn that a thread waits for, and holds until it is done."""

    __slots__ = ("_given", "dropped")

    def __init__(self, served: Served, lane: CallLane[Turn]) -> None:
        CallContext.__init__(self, (), None, served.label)
        self.served = served
        self.lane = lane
        self.in_thread = True
        self.since = 0.0
        self.when_over = None
        self.dropped = False
        """Whether it will never come: the object is no longer served."""
        self._given = threading.Event()

    def give(self) -> None:
        """Start the turn."""
        self.since = time.monotonic()
        self._given.set()

    def drop(self) -> None:
        """Note that the turn will never come."""
        self.dropped = True
        self._given.set()

    def wait(self) -> bool:
        """Wait for the turn; False if it will never come."""
        self._given.wait()
        return not self.dropped


_OUR_FRAMES = (__name__, "ropewalk.calls.streams", "ropewalk.calls.batching", "ropewalk.sharing.manager_server")
"""Modules that are left out of the tracebacks that callers see."""


__all__ = ["CallPolicy", "HeldTurn", "Incoming", "OnceIncoming", "Reply", "Served", "Turn"]
