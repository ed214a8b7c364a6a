"""Depots: where shared objects live, and where the calls that wait for something wait.

    link ─▶ CallServer ─▶ method of an object ─▶ its state decides ─▶ outcomes ─▶ answers, also of calls that waited
                                   │ none for this call: it waits, without a thread (`calls/later.py`)
                                   └─ its time is over, its caller is gone: the state decides again

Target 1 is the depot itself: it makes objects and counts who refers to them (`kept.py`). The depot does not unpickle
what passes through queues and pipes. Its states are pure (`states/`); a lock is held wherever one of them changes.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ropewalk.calls.frame import current
from ropewalk.calls.incoming import Incoming, Served
from ropewalk.calls.later import Later
from ropewalk.calls.markers import MethodFacts
from ropewalk.calls.payloads import Packed
from ropewalk.calls.server import CallServer
from ropewalk.sharing.kept import Kept
from ropewalk.sharing.states import KINDS
from ropewalk.sharing.states.pipe import PipeState
from ropewalk.sharing.states.waiting import Outcome, Party, State, Waiter
from ropewalk.transport.blobs import total_bytes
from ropewalk.transport.link import Link
from ropewalk.transport.loop import Loop, Timer

#: The depot itself, among its targets.
DEPOT_TARGET = 1
#: How often the depot looks for references that have expired.
_LOOK_S = 5.0
_WHICH = ("create", "introduce", "hold", "drop", "lend", "num_objects", "ping")


@dataclass(frozen=True, slots=True)
class Item:
    """What a user put into a queue or pipe, as it came: it is sent on as it is."""

    packed: Packed
    size_bytes: int

    @classmethod
    def of(cls, packed: Packed) -> Item:
        """An item and how much it weighs."""
        return cls(packed, sum(packed.shared) if packed.fds else total_bytes(packed.parts))


@dataclass(slots=True, eq=False)
class Stored:
    """One object of a depot."""

    served: Served | None = None
    state: State | None = None
    """What decides, if it is one of ours."""
    end: int | None = None
    """Which end of a pipe it is."""
    needs: Stored | None = None
    """Another object that it uses, such as the lock of a condition."""
    kept: Kept = field(default_factory=Kept)


@dataclass(slots=True, eq=False)
class _Wait:
    """A call that has no answer yet, or whose answer is lent."""

    later: Later
    state: State
    timer: Timer | None = None


class Depot:
    """Objects, who refers to them, and the calls that wait at them.

    Args:
        loop: hears the calls.
        server: serves them.
    """

    def __init__(self, loop: Loop, server: CallServer) -> None:
        self.loop = loop
        self.server = server
        self.lock = threading.RLock()
        """Held wherever a state or a reference changes."""
        self.stored: dict[int, Stored] = {}
        self._parties: dict[Link, Party] = {}
        self._party_numbers = itertools.count(1)
        self._waits: dict[Waiter, _Wait] = {}
        server.on_gone = self._gone
        facts = {name: MethodFacts(name, free=True, waits=True) for name in _WHICH}
        front = server.serve(self, facts, "depot")
        assert front.target == DEPOT_TARGET
        loop.call_soon(self._look)

    @property
    def is_idle(self) -> bool:
        """Whether nobody needs it."""
        return not self.stored and not self._parties

    # What processes ask the depot itself

    def introduce(self, name: str) -> None:
        """Have the caller called by a name that says more."""
        link = _calling().link
        with self.lock:
            self._parties[link] = Party(self._party(link).process, name)

    def create(self, kind: str, *args: Any) -> list[int]:
        """Make an object and hold it for the caller; returns its target, for a pipe those of both ends.

        Raises:
            ValueError, TypeError: the arguments are not as the state wants them.
        """
        with self.lock:
            needs = self.stored[args[0]] if kind == "condition" else None
            state = KINDS[kind](needs.state) if needs else KINDS[kind](*args)
            if isinstance(state, PipeState):
                return [self.keep(self._serve(Stored(state=state, end=end), kind)) for end in (0, 1)]
            return [self.keep(self._serve(Stored(state=state, needs=needs), kind))]

    def keep(self, stored: Stored) -> int:
        """Count an object that is served, held by the caller of the call that runs; returns its target."""
        assert stored.served
        link = _calling().link
        with self.lock:
            self.stored[stored.served.target] = stored
            stored.kept.hold(link, self._party(link).name)
            if stored.needs:
                stored.needs.kept.hold(stored, "a condition")
        return stored.served.target

    def hold(self, target: int) -> None:
        """The caller has a handle of an object."""
        link = _calling().link
        with self.lock:
            stored = self.stored.get(target)
            if stored:
                stored.kept.hold(link, self._party(link).name)

    def drop(self, target: int) -> None:
        """The caller has no handle of an object any more."""
        with self.lock:
            stored = self.stored.get(target)
            if stored:
                stored.kept.drop(_calling().link)
                self._reap(target, stored)

    def lend(self, target: int) -> None:
        """The caller has pickled a handle of an object, which is under way now."""
        with self.lock:
            stored = self.stored.get(target)
            if stored:
                stored.kept.lend(_calling().link)

    def num_objects(self) -> int:
        """How many objects it holds."""
        return len(self.stored)

    def ping(self) -> None:
        """Say that the depot is there."""

    # References

    def _party(self, link: Link) -> Party:
        party = self._parties.get(link)
        if party is None:
            party = Party(f"{link.peer}/{next(self._party_numbers)}", link.peer.partition("#")[0])
            self._parties[link] = party
        return party

    def _gone(self, link: Link) -> None:
        """A process has hung up, or is dead; on the loop."""
        with self.lock:
            party = self._parties.pop(link, None)
            if party is None:
                return
            for state in {id(stored.state): stored.state for stored in self.stored.values() if stored.state}.values():
                self._end_all(state.party_gone(party.process, party.name))
            now = time.monotonic()
            for target, stored in list(self.stored.items()):
                stored.kept.gone(link, now)
                self._reap(target, stored)

    def _look(self) -> None:
        with self.lock:
            for target, stored in list(self.stored.items()):
                self._reap(target, stored)
        self.loop.call_later(_LOOK_S, self._look)

    def _reap(self, target: int, stored: Stored) -> None:
        """Let go of an object that nobody refers to."""
        if stored.kept.is_wanted(time.monotonic()) or target not in self.stored:
            return
        del self.stored[target]
        assert stored.served
        self.server.withdraw(stored.served)
        if isinstance(stored.state, PipeState) and stored.end is not None:
            self._end_all(stored.state.end_closed(stored.end, " and ".join(stored.kept.last) or "nobody"))
        if stored.needs:
            stored.needs.kept.drop(stored)
            for other, needed in list(self.stored.items()):
                if needed is stored.needs:
                    self._reap(other, needed)

    # Calls that wait

    def _serve(self, stored: Stored, kind: str) -> Stored:
        """Let the methods of a state be called."""
        state = stored.state
        assert state
        facts: dict[str, MethodFacts] = {}
        ways = types.SimpleNamespace()
        for name in sorted(state.METHODS):
            sealed = name in state.SEALED
            facts[name] = MethodFacts(name, free=True, sealed=sealed, waits=True)
            ask = self._ask_with if sealed else self._ask
            setattr(ways, name, functools.partial(ask, stored, name))
        stored.served = self.server.serve(ways, facts, kind)
        return stored

    def _ask(self, stored: Stored, method: str, thread: int, *args: Any) -> Any:
        return self._decide(stored, method, thread, args)

    def _ask_with(self, stored: Stored, method: str, packed: Packed) -> Any:
        return self._decide(stored, method, 0, (Item.of(packed),))

    def _decide(self, stored: Stored, method: str, thread: int, args: Sequence[Any]) -> Any:
        call = _calling()
        state = stored.state
        assert state
        with self.lock:
            party = self._party(call.link)
            waiter = Waiter(Party(party.process, party.name, thread))
            place = () if stored.end is None else (stored.end,)
            own = self._own(getattr(state, method)(waiter, *place, *args), waiter)
            if own is None and call.deadline is not None and call.deadline <= time.monotonic():
                own = self._own(state.give_up(waiter, True), waiter)
            if own is None or own.lent:
                return self._wait(waiter, state, call, own)
        if own.error:
            raise own.error
        return own.value

    def _own(self, outcomes: list[Outcome], waiter: Waiter) -> Outcome | None:
        """The outcome of one call; those of others are sent."""
        own = None
        for outcome in outcomes:
            if outcome.waiter is waiter:
                own = outcome
            else:
                self._end(outcome)
        return own

    def _wait(self, waiter: Waiter, state: State, call: Incoming, own: Outcome | None) -> Later:
        later = Later(lambda: self._given_up(waiter, call), lambda: self._taken(waiter))
        wait = self._waits[waiter] = _Wait(later, state)
        if own:
            self._end(own)
        elif call.deadline is not None:
            left_s = call.deadline - time.monotonic()
            self.loop.call_soon(lambda: self._time(wait, waiter, left_s))
        return later

    def _time(self, wait: _Wait, waiter: Waiter, left_s: float) -> None:
        if waiter in self._waits:
            wait.timer = self.loop.call_later(left_s, lambda: self._too_late(wait, waiter))

    def _too_late(self, wait: _Wait, waiter: Waiter) -> None:
        with self.lock:
            if waiter in self._waits:
                self._end_all(wait.state.give_up(waiter, True))

    def _given_up(self, waiter: Waiter, call: Incoming) -> None:
        """The caller cancelled, or is gone: then `party_gone` says so in a moment."""
        with self.lock:
            wait = self._waits.pop(waiter, None)
            if wait is None:
                return
            if wait.timer:
                wait.timer.cancel()
            if not call.link.closed:
                self._end_all(wait.state.give_up(waiter, False))

    def _taken(self, waiter: Waiter) -> None:
        with self.lock:
            wait = self._waits.pop(waiter, None)
            if wait:
                self._end_all(wait.state.taken(waiter))

    def _end_all(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            self._end(outcome)

    def _end(self, outcome: Outcome) -> None:
        """Answer a call that has waited."""
        wait = self._waits.get(outcome.waiter)
        if wait is None:
            return
        if wait.timer:
            wait.timer.cancel()
            wait.timer = None
        if not outcome.lent:
            del self._waits[outcome.waiter]
        if outcome.error:
            wait.later.fail(outcome.error)
        else:
            value = outcome.value
            wait.later.answer(value.packed if type(value) is Item else value, lent=outcome.lent)


def _calling() -> Incoming:
    """The call that runs."""
    call = current.get()
    assert isinstance(call, Incoming)
    return call


__all__ = ["DEPOT_TARGET", "Depot", "Item", "Stored"]
