"""Calls to shared objects of a depot, and those among them that wait.

    Call ─▶ method of a state ─▶ outcomes ─▶ answers, to this call and to others that waited
               │ none for this call: it is stored here, and costs no thread
               └─ its timeout passes, it is cancelled, its caller is gone: the state decides again

States are pure (`states/`). Items of queues and pipes are passed on unchanged. A value that is *lent* (an item, a
lock) counts as taken when its caller has noted that in a shared page, or reported it; until then it can come back.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import resource
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ropewalk.calls.messages import Answer, Call, Raised, Several
from ropewalk.calls.payloads import PackedValue, unpack
from ropewalk.calls.server import CallServer
from ropewalk.errors import LinkClosed
from ropewalk.escaping import escaped
from ropewalk.sharing.states.queue import QueueState
from ropewalk.sharing.states.waiting import CallOutcome, Party, Passed, SharedState, Waiter
from ropewalk.transport.ack_page import NUM_LOTS, AckLease, AckPage
from ropewalk.transport.blobs import total_bytes
from ropewalk.transport.descriptors import Descriptors
from ropewalk.transport.failures import failure_of
from ropewalk.transport.link import Link, Received
from ropewalk.transport.loop import Loop, Timer

_LOOK_S = 1.0
"""Seconds between checks of the pages of callers that do not call."""
_MAX_NAME = 200
"""The longest name of a process that is shown, in characters."""


@dataclass(frozen=True, slots=True)
class QueuedItem:
    """An item of a queue or pipe, as it came; it is sent on unchanged."""

    packed: PackedValue
    size_bytes: int

    @property
    def is_light(self) -> bool:
        """Whether it is one part, and not a file: then it can be batched with others."""
        return len(self.packed.parts) == 1 and not self.packed.fds


@dataclass(slots=True, eq=False)
class DepotCaller:
    """One connection of a process, as the depot's caller."""

    link: Link
    party: Party
    parties: dict[int, Party] = field(default_factory=dict[int, Party])
    """Its threads, by number."""
    waits: dict[int, Asking] = field(default_factory=dict[int, "Asking"])
    """Its calls without an answer, by number."""
    lent: dict[int, Asking] = field(default_factory=dict[int, "Asking"])
    """Its calls whose answers may not have arrived."""
    page: AckPage | None = None
    lots: dict[int, AckLease] = field(default_factory=dict[int, "AckLease"])
    """The last lease in each place of its page."""

    def lot(self, place: int) -> AckLease | None:
        """Return a new lease in one of the places of its page; the caller has finished with the previous one."""
        if self.page is None or not 0 <= place < NUM_LOTS:
            return None
        before = self.lots.get(place)
        if before:
            before.close()  # another queue may have lent it, and learn only later of its end
        lot = self.lots[place] = self.page.lot(place)
        return lot

    def rename(self, name: str) -> None:
        """Change its name, if the new one extends its own: other processes read it in errors and logs."""
        own = self.party.name
        if name.startswith((f"{own} ", f"the {own} ")):
            self.party = Party(self.party.process, escaped(name[:_MAX_NAME]))
            self.parties.clear()

    def thread(self, thread: int) -> Party:
        """Return one of its threads."""
        party = self.parties.get(thread)
        if party is None:
            party = self.parties[thread] = Party(self.party.process, self.party.name, thread)
        return party


@dataclass(frozen=True, slots=True, eq=False)
class Asking(Waiter):
    """A call to a shared object."""

    caller: DepotCaller
    number: int
    state: SharedState


@dataclass(frozen=True, slots=True)
class _Way:
    """How one object is called."""

    state: SharedState
    methods: dict[str, Callable[..., list[CallOutcome]]]
    place: tuple[int, ...]
    """The first arguments of its methods: the end of a pipe."""
    many: frozenset[str]
    """The methods that take any number of items."""
    lending: frozenset[str]
    """The methods that lend several items, to callers that name one of their places."""


class WaitingCalls:
    """Answers calls to shared objects; see `WaitlessHandler`.

    Args:
        loop: the loop of the depot.
        server: receives the calls.
        on_gone: called with each caller that is gone, when its calls have ended.
    """

    def __init__(self, loop: Loop, server: CallServer, on_gone: Callable[[DepotCaller], object]) -> None:
        self.lock = threading.RLock()
        """Held wherever a state changes."""
        self.callers: dict[Link, DepotCaller] = {}
        self._loop = loop
        self._server = server
        self._on_gone = on_gone
        self._ways: dict[int, _Way] = {}
        self._timers: dict[Asking, Timer] = {}
        self._numbers = itertools.count(1)
        server.waitless = self
        loop.call_soon(self._look)

    # Objects

    def open(self, state: SharedState, end: int | None = None) -> int:
        """Make a state callable; returns its target."""
        target = self._server.next_target()
        methods = {name: getattr(state, name) for name in state.METHODS}
        many, lending = (state.MANY, state.LENDING) if isinstance(state, QueueState) else (frozenset[str](),) * 2
        self._ways[target] = _Way(state, methods, () if end is None else (end,), many, lending)
        return target

    def shut(self, target: int) -> None:
        """Answer no more calls to an object."""
        self._ways.pop(target, None)

    def end_all(self, outcomes: Sequence[CallOutcome]) -> None:
        """Answer calls that have waited."""
        for outcome in outcomes:
            self._end(outcome)

    def caller(self, link: Link) -> DepotCaller:
        """Return the caller at the other end of a link."""
        caller = self.callers.get(link)
        if caller is None:
            party = Party(f"{link.peer}/{next(self._numbers)}", link.peer.rpartition("#")[0] or link.peer)
            caller = self.callers[link] = DepotCaller(link, party)
            if link.closed:  # one of its calls has outlived it; this runs after its end, or together with it
                self._loop.call_soon(lambda: self.gone(link))
        return caller

    # Methods of `WaitlessHandler`; on the loop

    def call(self, link: Link, message: Call, received: Received) -> bool:
        way = self._ways.get(message.target)
        if way is None:
            return False
        with self.lock:
            caller = self.callers.get(link) or self.caller(link)
            if caller.lent:
                self._look_at(caller)
            try:
                self._decide(way, caller, message, received)
            except Exception as error:  # wrong arguments: the caller's fault, which must not end the depot
                self._reply(link, Raised(message.number, failure_of(error, __name__)))
        return True

    def cancel(self, link: Link, number: int) -> None:
        with self.lock:
            caller = self.caller(link)
            asking = caller.waits.pop(number, None) or caller.lent.pop(number, None)
            if asking:
                self._stop_timer(asking)
                self.end_all(asking.state.give_up(asking, False))

    def taken(self, link: Link, number: int) -> None:
        with self.lock:
            asking = self.caller(link).lent.pop(number, None)
            if asking:
                self.end_all(asking.state.taken(asking))

    def begun(self, target: int) -> None:
        way = self._ways.get(target)
        if way and isinstance(way.state, QueueState):
            with self.lock:
                self.end_all(way.state.begun())

    def page(self, link: Link, fd: int) -> None:
        try:
            self.caller(link).page = AckPage(fd)
        except OSError:  # the values that it takes come back when it is gone
            pass
        finally:
            os.close(fd)

    def gone(self, link: Link) -> None:
        with self.lock:
            caller = self.callers.pop(link, None)
            if caller is None:
                return
            self._look_at(caller)
            for asking in caller.waits.values():
                self._stop_timer(asking)
            for state in {id(way.state): way.state for way in self._ways.values()}.values():
                self.end_all(state.party_gone(caller.party.process, caller.party.name))
            if caller.page:
                caller.lots.clear()
                caller.page.close()
            self._on_gone(caller)

    # Calls

    def _decide(self, way: _Way, caller: DepotCaller, message: Call, received: Received) -> None:
        name, state = message.method, way.state
        method = way.methods.get(name)
        if method is None:
            raise AttributeError(f"there is no method {name!r}; there are {', '.join(sorted(way.methods))}")
        if name in state.SEALED:
            asking = Asking(caller.party, caller, message.number, state)
            file = Descriptors([received.fds.take()]) if message.shared else None
            packed = PackedValue(received.parts, message.shared, file)
            size = sum(packed.shared) if packed.fds else total_bytes(packed.parts)
            if packed.fds and packed.fds[0] > _most_descriptors():
                packed = packed.copied()
            item = QueuedItem(packed, size)
            if message.credit and name in way.lending:
                outcomes = method(asking, item, caller.lot(message.credit - 1))
            else:
                outcomes = method(asking, *way.place, item)
        elif name in way.many:
            asking = Asking(caller.party, caller, message.number, state)
            outcomes = method(
                asking, *way.place, [QueuedItem(PackedValue((part,)), len(part)) for part in received.parts]
            )
        else:
            thread, *args = unpack(received, message.shared)
            asking = Asking(caller.thread(thread), caller, message.number, state)
            if args and name in way.lending:
                args = [caller.lot(args[0])]
            outcomes = method(asking, *way.place, *args)
        if not self._answer(outcomes, asking):
            caller.waits[message.number] = asking
            if message.timeout_s is not None:
                self._wait_so_long(asking, message.timeout_s)

    def _answer(self, outcomes: Sequence[CallOutcome], asking: Asking) -> bool:
        """Send outcomes; returns whether one was for this call."""
        own = False
        for outcome in outcomes:
            own = own or outcome.waiter is asking
            self._end(outcome)
        return own

    def _wait_so_long(self, asking: Asking, timeout_s: float) -> None:
        if timeout_s <= 0:
            self._too_late(asking)
        else:
            self._timers[asking] = self._loop.call_later(timeout_s, lambda: self._too_late(asking))

    def _too_late(self, asking: Asking) -> None:
        with self.lock:
            self._timers.pop(asking, None)
            if asking.number in asking.caller.waits:
                self.end_all(asking.state.give_up(asking, True))

    def _end(self, outcome: CallOutcome) -> None:
        """Answer a call."""
        asking = outcome.waiter
        assert isinstance(asking, Asking)
        caller = asking.caller
        caller.waits.pop(asking.number, None)
        if self._timers:
            self._stop_timer(asking)
        if outcome.lent:
            caller.lent[asking.number] = asking
        value = outcome.value
        if outcome.error:
            self._reply(caller.link, Raised(asking.number, failure_of(outcome.error, __name__)))
        elif type(value) is QueuedItem:
            packed = value.packed
            if packed.fds and not caller.link.stream.carries_fds:
                packed = packed.unfolded()
            if packed.fds:
                with contextlib.suppress(LinkClosed):
                    caller.link.send(Answer(asking.number, packed.shared, outcome.lent), (), packed.fds)
            elif outcome.more:
                parts = (*packed.parts, *[item.packed.parts[0] for item in outcome.more])
                self._reply(caller.link, Several(asking.number), parts)
            else:
                self._reply(caller.link, Answer(asking.number, (), outcome.lent), packed.parts)
        elif type(value) is Passed and caller.link.stream.carries_fds:
            with contextlib.suppress(LinkClosed):
                caller.link.send(Answer(asking.number, ()), (), [value.fd])
        elif value is None or type(value) is Passed:
            self._reply(caller.link, Answer(asking.number, ()))
        else:
            self._reply(caller.link, Answer(asking.number, (), outcome.lent), (pickle.dumps(value, 5),))

    def _reply(self, link: Link, answer: Any, parts: Sequence[Any] = ()) -> None:
        with contextlib.suppress(LinkClosed):  # the loop notices by itself
            self._server.reply(link, answer, parts)

    def _stop_timer(self, asking: Asking) -> None:
        timer = self._timers.pop(asking, None)
        if timer:
            timer.cancel()

    # Lent values

    def _look_at(self, caller: DepotCaller) -> None:
        """See which values a caller has taken."""
        page = caller.page
        if page:
            for number in [number for number in caller.lent if page.see(number)]:
                asking = caller.lent.pop(number)
                self.end_all(asking.state.taken(asking))

    def _look(self) -> None:
        with self.lock:
            for caller in list(self.callers.values()):
                if caller.lent:
                    self._look_at(caller)
        self._loop.call_later(_LOOK_S, self._look)


def _most_descriptors() -> int:
    """Return the number of open descriptors up to which items keep memory files: links need the others."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft // 2


__all__ = ["Asking", "DepotCaller", "QueuedItem", "WaitingCalls"]
