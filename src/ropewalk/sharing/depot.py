"""Depots: the shared objects of a host, and the references to them.

    link ─▶ CallServer ─┬─▶ notices of references: held, under way, released, in order      (refcounts.py)
                        ├─▶ calls to shared objects, and those of them that wait            (waiting_calls.py, states/)
                        ├─▶ target 1, the depot itself: make an object
                        └─▶ objects of users, in a manager                                  (manager_server.py)

The depot does not unpickle the items of queues and pipes. It runs on one loop; a lock is held wherever a state
or a reference changes, because objects of users are called from other threads as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ropewalk.calls.call_context import current
from ropewalk.calls.incoming import Incoming, Served
from ropewalk.calls.markers import MethodFacts
from ropewalk.calls.messages import Answer, Call, Raised
from ropewalk.calls.payloads import unpack
from ropewalk.calls.server import CallServer
from ropewalk.sharing.recorded_state import RECORDED, DepotCallers, RecordedState
from ropewalk.sharing.refcounts import RefCounts
from ropewalk.sharing.ringed_queue import RingedQueue
from ropewalk.sharing.states import KINDS
from ropewalk.sharing.states.memory import MemoryState
from ropewalk.sharing.states.pipe import PipeState
from ropewalk.sharing.states.waiting import SharedState
from ropewalk.sharing.waiting_calls import DepotCaller, WaitingCalls
from ropewalk.sharing.wires import make_pipe
from ropewalk.transport.failures import failure_of
from ropewalk.transport.link import Link, Received
from ropewalk.transport.loop import Loop

DEPOT_TARGET = 1
"""The target of the depot itself."""
_LOOK_S = 5.0
"""Seconds between checks for references that have expired."""
_WHICH = ("create", "num_objects", "ping", "sit")


@dataclass(slots=True, eq=False)
class Stored:
    """One object of a depot."""

    served: Served | None = None
    """An object of a user; None for an object with a state of ours."""
    state: SharedState | None = None
    end: int | None = None
    """Which end of a pipe it is."""
    needs: Stored | None = None
    """Another object that it uses, such as the lock of a condition."""
    kept: RefCounts = field(default_factory=RefCounts)


class _DepotCalls(WaitingCalls):
    """Waiting calls, and notices of references.

    Notices take effect in the order in which a process sends them: a `lend` after the `drop` that follows it comes too
    late. So the loop acts on each before it reads the next one, and never gives it to a deputy or a thread, as it
    would a call that takes long: any of them takes long when the core is taken away in the middle of it.

    Args:
        words: the handler of each notice, by name; called with the caller.
    """

    def __init__(
        self,
        loop: Loop,
        server: CallServer,
        on_gone: Callable[[DepotCaller], object],
        words: Mapping[str, Callable[..., object]],
    ) -> None:
        super().__init__(loop, server, on_gone)
        self._words = words

    def call(self, link: Link, message: Call, received: Received) -> bool:
        word = self._words.get(message.method) if message.target == DEPOT_TARGET else None
        if word is None:
            return super().call(link, message, received)
        answer: Answer | Raised = Answer(message.number, ())
        with self.lock:
            try:
                word(self.caller(link), *unpack(received, message.shared))
            except Exception as error:  # wrong arguments: the caller's fault, which must not end the depot
                answer = Raised(message.number, failure_of(error, __name__))
        self._reply(link, answer)
        return True


class Depot:
    """Holds shared objects, and the references to them.

    Args:
        loop: receives the calls.
        server: serves them.
        host: the host that it runs on.
    """

    def __init__(self, loop: Loop, server: CallServer, host: str = "") -> None:
        words = {"introduce": DepotCaller.rename} | {
            word.__name__: word for word in (self.hold, self.drop, self.lend, self.take_back, self.ring)
        }
        self.records = DepotCallers()
        """The states in memory that it shares with the processes of its host."""
        self.calls = _DepotCalls(loop, server, self._gone, words)
        self.lock = self.calls.lock
        """Held wherever a state or a reference changes."""
        self.stored: dict[int, Stored] = {}
        self._loop = loop
        self._server = server
        self._host = host
        facts = {name: MethodFacts(name, free=True) for name in _WHICH}
        front = server.serve(self, facts, "depot")
        assert front.target == DEPOT_TARGET
        loop.call_soon(self._look)

    @property
    def is_idle(self) -> bool:
        """Whether it has no objects and no callers."""
        return not self.stored and not self.calls.callers

    # Methods of the depot itself

    def create(self, kind: str, *args: Any) -> tuple[str, list[int], int, int]:
        """Make an object, held by the caller.

        Args:
            kind: a member of the family in `sharing/states`.
            args: arguments of its constructor.

        Returns:
            This host; the object's target, for a pipe those of both ends; the place of its record in memory that this
            host shares, 0 if it has none, and which of the states there it is.

        Raises:
            ValueError, TypeError: the state does not accept the arguments.
        """
        with self.lock:
            needs = self.stored[args[0]] if kind == "condition" else None
            state: SharedState
            if kind == "pipe":
                state = make_pipe(self._loop, self.calls, *args)
            else:
                recorded = self._recorded(kind, needs) if kind != "queue" else None
                state = recorded or (KINDS[kind](needs.state) if needs else KINDS[kind](*args))
                if recorded and not needs:
                    return self._begun(recorded, kind, args)
                if kind == "queue":
                    state = self._ringed(*args) or state
            ends = (0, 1) if isinstance(state, PipeState) else (None,)
            targets = [self.keep(Stored(state=state, end=end, needs=needs)) for end in ends]
            if isinstance(state, RingedQueue):
                state.begin(targets[0])
            return self._host, targets, *_place_of(state)

    def _recorded(self, kind: str, needs: Stored | None) -> RecordedState | None:
        """Return a new state in shared memory; None where the depot has to keep it."""
        if needs:
            lock = needs.state
            return RecordedState(self.records, kind, lock.slot, lock) if isinstance(lock, RecordedState) else None
        slot = self._slot() if kind in RECORDED else 0
        return RecordedState(self.records, kind, slot) if slot else None

    def _ringed(self, *args: Any) -> RingedQueue | None:
        """Return a new queue in shared memory; None where the depot has to keep it."""
        slot = self._slot()
        try:
            return RingedQueue(self.records, slot, *args) if slot else None
        except OSError:  # no memory is left
            assert self.records.arena
            self.records.arena.free_record(slot)
            return None

    def _slot(self) -> int:
        """Return the place of a new record; 0 if there is none."""
        arena = self.records.opened()
        return arena.take_record() if arena else 0

    def _begun(self, state: RecordedState, kind: str, args: tuple[Any, ...]) -> tuple[str, list[int], int, int]:
        try:
            first = state.first_form(kind, args)
        except BaseException:
            state.close()
            raise
        target = self.keep(Stored(state=state))
        state.begin(target, first)
        return self._host, [target], *_place_of(state)

    def sit(self) -> tuple[int, str, str, bytes, int]:
        """Return the caller's seat in the shared memory of this host, 0 if it has none, its name, and where that is."""
        with self.lock:
            return self.records.sit(_caller(self))

    def keep(self, stored: Stored) -> int:
        """Add an object, held by the present caller; returns its target."""
        caller = _caller(self)
        with self.lock:
            if stored.state:
                target = self.calls.open(stored.state, stored.end)
            else:
                assert stored.served
                target = stored.served.target
            self.stored[target] = stored
            stored.kept.hold(caller, caller.party.name)
            if stored.needs:
                stored.needs.kept.hold(stored, "a condition")
        return target

    def num_objects(self) -> int:
        """Return the number of its objects."""
        return len(self.stored)

    def ping(self) -> None:
        """Show that the depot is there."""

    # Notices of references; with the lock, in the order in which each process sends them

    def hold(self, caller: DepotCaller, target: int, ticket: int) -> None:
        """Record that a process has a handle of an object, from a pickle with that ticket; 0: from none."""
        stored = self.stored.get(target)
        if stored:
            stored.kept.hold(caller, caller.party.name, ticket, time.monotonic())

    def drop(self, caller: DepotCaller, target: int) -> None:
        """Record that a process has no handle of an object any more."""
        stored = self.stored.get(target)
        if stored:
            stored.kept.drop(caller)
            self._reap(target, stored)

    def lend(self, caller: DepotCaller, target: int, ticket: int) -> None:
        """Record that a process has pickled a handle of an object, which is under way now."""
        stored = self.stored.get(target)
        if stored:
            stored.kept.lend(caller, ticket)

    def take_back(self, _: DepotCaller, target: int, ticket: int) -> None:
        """Record that a process has discarded a pickle of a handle, which will never arrive."""
        stored = self.stored.get(target)
        if stored:
            stored.kept.arrive(ticket, time.monotonic())
            self._reap(target, stored)

    def ring(self, caller: DepotCaller, target: int) -> None:
        """Answer calls to an object that a process of this host has ended."""
        stored = self.stored.get(target)
        if stored and isinstance(stored.state, RecordedState):
            self.calls.end_all(stored.state.rung())
        elif stored and isinstance(stored.state, RingedQueue):
            self.calls.end_all(stored.state.unclaim(caller.party.process))

    def _gone(self, caller: DepotCaller) -> None:
        """Handle the end of a process or its connection, after its calls have ended."""
        self.records.gone(caller)
        now = time.monotonic()
        for target, stored in list(self.stored.items()):
            stored.kept.gone(caller, now)
            self._reap(target, stored)

    def _look(self) -> None:
        with self.lock:
            for target, stored in list(self.stored.items()):
                self._reap(target, stored)
        self._loop.call_later(_LOOK_S, self._look)

    def _reap(self, target: int, stored: Stored) -> None:
        """Remove an object without references."""
        if stored.kept.is_wanted(time.monotonic()) or target not in self.stored:
            return
        del self.stored[target]
        if stored.served:
            self._server.withdraw(stored.served)
        self.calls.shut(target)
        if isinstance(stored.state, MemoryState | RecordedState | RingedQueue):
            stored.state.close()
        if isinstance(stored.state, PipeState) and stored.end is not None:
            self.calls.end_all(stored.state.end_closed(stored.end, " and ".join(stored.kept.last) or "nobody"))
        if stored.needs:
            stored.needs.kept.drop(stored)
            for other, needed in list(self.stored.items()):
                if needed is stored.needs:
                    self._reap(other, needed)


def _place_of(state: SharedState) -> tuple[int, int]:
    return (state.slot, state.part) if isinstance(state, RecordedState | RingedQueue) else (0, 0)


def _caller(depot: Depot) -> DepotCaller:
    """Return the caller of the present call."""
    call = current.get()
    assert isinstance(call, Incoming)
    return depot.calls.caller(call.link)


__all__ = ["DEPOT_TARGET", "Depot", "Stored"]
