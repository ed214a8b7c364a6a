"""Calls to objects of this host that their processes decide themselves, in memory that they share with the depot.

    handle ─▶ HostCalls.ask ─▶ record: decided here ─▶ outcome, or sleep at a berth ◀─ post ─ the process that ends it
                                   └ a call of another host ended ─▶ ring ─▶ the depot answers it

The depot takes part where a process dies, or a process of another host calls (`recorded_state.py`).
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ropewalk.processes.interrupts import interrupts_deferred
from ropewalk.sharing import lock_rings
from ropewalk.sharing.arena import NUM_BERTHS
from ropewalk.sharing.lock_rings import LockCall
from ropewalk.sharing.membership import on_fork
from ropewalk.sharing.permit_ring import PermitCall, PermitSeen, enter, grant, take
from ropewalk.sharing.record_words import KIND, PRESENT, TARGET
from ropewalk.sharing.shared_record import SharedRecord
from ropewalk.sharing.states.recorded import BARRIER, RecordedStates, WaiterTable
from ropewalk.transport.process_mutex import LOOK_S, post, wait_at

if TYPE_CHECKING:
    from ropewalk.calls.rpc_connection import RpcConnection
    from ropewalk.sharing.depot_client import DepotClient
    from ropewalk.sharing.states.waiting import CallOutcome, WaiterKey

OnLost = Callable[["HostCalls"], Exception]
"""Returns the error to raise if the depot of a call is gone."""
_Result = tuple[Any, Exception | None]
"""What a call has ended with: its result, or an error."""
_See = Callable[[bool], _Result | None]
"""Returns what a call has ended with, if it has, and is told whether its time is over."""


class BerthsTaken(Exception):
    """As many threads of this process sleep as there are berths: the depot has to make the call."""


class HostCalls:
    """Calls to one object.

    Args:
        client: this process at the depot.
        slot: the place of the object's record.
        part: the state in it; see `RecordedStates.part`.
        ring: has the depot answer calls that it waits for.
    """

    def __init__(self, client: DepotClient, slot: int, part: int, ring: Callable[[], object]) -> None:
        self.record = SharedRecord(client.arena, slot)
        self.words = self.record.words
        self.mutex = self.record.mutex
        self.connection: RpcConnection | _Inherited = client.connection
        """The link to the depot; once it is closed, these calls are over."""
        self.seat = client.seat
        self._client = client
        self._part = part
        self._ring = ring
        _all_calls.add(self)

    def ask(self, method: str, args: Sequence[Any], timeout: float | None, lost: OnLost) -> Any:
        """Call a method of the state; waits if it has to.

        Args:
            method: the name of a method of the state.
            args: plain values.
            timeout: seconds that the call may wait; the state decides how it ends then.
            lost: returns the error to raise if the depot is gone.

        Raises:
            BerthsTaken: there is no place to sleep; nothing has happened.
        """
        number = self._berth()
        try:
            return self._ask((self.seat, number, threading.get_ident()), method, args, timeout, lost)
        finally:
            self._client.free.append(number)

    def release(self) -> None:
        """Release a lock or semaphore once, which waits for nothing."""
        key = self.seat, NUM_BERTHS, threading.get_ident()
        self._change(lambda states: states.decide(self._part, "release", key, ()))

    def set_event(self) -> None:
        """Set the event, and wake the threads that wait."""
        self._wake(self.record.set_event())

    def wait_for_event(self, timeout: float | None, lost: OnLost) -> bool:
        """Wait until the event is set; returns whether it was. Arguments and errors as in `ask`."""
        number = self._berth()
        key = self.seat, number, threading.get_ident()

        def see(is_late: bool) -> _Result | None:
            return (True, None) if not self.words[PRESENT] else self._see(key, is_late)

        try:
            return self.record.wait_at_event(key) or self._sleep(key, timeout, lost, see)[0]
        except BaseException:  # Ctrl-C
            with interrupts_deferred:
                self._give_up(key, False)
            raise
        finally:
            self._client.free.append(number)

    def wait_for_lock(self, recursive: bool, timeout: float | None, lost: OnLost) -> bool | str:
        """Acquire a lock; returns as `LockState.acquire`. Arguments and errors as in `ask`."""
        thread, number = threading.get_ident(), self._berth()
        key, call = (self.seat, number, thread), self._client.lock_calls[number]
        call.is_taken = False
        try:
            if not lock_rings.claim(self.record, call, thread, recursive):
                return self._ask(key, "acquire", (), timeout, lost)
            if timeout is None:
                self._client.alarm.sleep_at(self._client.berths[number])
                if lock_rings.take(self.record, call, thread):
                    return True
            return self._sleep(key, timeout, lost, functools.partial(self._see_lock, key, call))[0]
        except BaseException:  # Ctrl-C
            with interrupts_deferred:
                if not call.is_taken:
                    self._give_up(key, False)
                elif not self.release_lock(recursive):
                    self._return(key)
            raise
        finally:
            self._client.free.append(number)

    def release_lock(self, recursive: bool) -> bool:
        """Release a lock once, and wake the thread that owns it now; returns whether that was done."""
        return self._passed(lock_rings.release(self.record, self.seat, threading.get_ident(), recursive))

    def wait_at_condition(self, timeout: float | None, lost: OnLost) -> bool | str:
        """Wait at a condition; returns as `ConditionState.wait`. Arguments and errors as in `ask`."""
        thread, number = threading.get_ident(), self._berth()
        key, call = (self.seat, number, thread), self._client.lock_calls[number]
        call.is_taken = False
        try:
            if not self._passed(lock_rings.wait(self.record, call, thread, self._part)):
                return self._ask(key, "wait", (), timeout, lost)
            if timeout is None:
                self._client.alarm.sleep_at(self._client.berths[number])
                if lock_rings.take(self.record, call, thread):
                    return True
            return self._sleep(key, timeout, lost, functools.partial(self._see_lock, key, call))[0]
        except BaseException:  # Ctrl-C: `resume` is called next
            with interrupts_deferred:
                if not call.is_taken:
                    self._give_up(key, False)
            raise
        finally:
            self._client.free.append(number)

    def notify(self, n: int) -> int:
        """Notify threads at a condition; returns how many of n the states have to notify."""
        thread = threading.get_ident()
        while n > 0:
            is_notified = lock_rings.notify(self.record, self.seat, thread, self._part)
            if not is_notified:
                return n if is_notified is None else 0
            n -= 1
        return 0

    def _see_lock(self, key: WaiterKey, call: LockCall, is_late: bool) -> _Result | None:
        if is_late and call.is_claim and lock_rings.withdraw(self.record, call):
            return False, None
        seen = None if is_late else lock_rings.take(self.record, call, key[2])
        if seen is None:
            return self._see(key, is_late)
        return (True, None) if seen else None

    def _passed(self, entry: int | None) -> bool:
        """Wake the thread of a call that has its lock or permit now; returns whether anything was done."""
        if entry:
            self._client.wake(entry & lock_rings.CALL)
        return entry is not None

    def give_permit(self) -> bool:
        """Release a semaphore, and wake the thread whose turn it is; returns whether that was done."""
        return self._passed(grant(self.record))

    def wait_for_permit(self, timeout: float | None, lost: OnLost) -> bool:
        """Acquire a semaphore; returns whether that was done. Arguments and errors as in `ask`."""
        client = self._client
        try:
            number = client.free.pop()
        except IndexError:
            raise BerthsTaken from None
        key, call = (self.seat, number, 0), client.permit_calls[number]
        call.is_taken = False  # before an interrupt is caught that may come before it enters
        try:
            if not enter(self.record, call):
                return self._ask(key, "acquire", (), timeout, lost)
            if timeout is None:
                client.alarm.sleep_at(client.berths[number])
                if take(self.record, call, False) is PermitSeen.GRANTED:
                    return True
            return self._sleep(key, timeout, lost, functools.partial(self._see_permit, key, call))[0]
        except BaseException:  # Ctrl-C
            with interrupts_deferred:
                if not call.is_taken:
                    self._give_up(key, False)
                elif not self.give_permit():
                    self._return(key)
            raise
        finally:
            client.free.append(number)

    def _see_permit(self, key: WaiterKey, call: PermitCall, is_late: bool) -> _Result | None:
        seen = take(self.record, call, is_late)
        if seen is PermitSeen.ELSEWHERE:
            return self._see(key, is_late)
        return None if seen is PermitSeen.WAITS else (seen is PermitSeen.GRANTED, None)

    def _berth(self) -> int:
        try:
            return self._client.free.pop()
        except IndexError:
            raise BerthsTaken from None

    def _ask(self, key: WaiterKey, method: str, args: Sequence[Any], timeout: float | None, lost: OnLost) -> Any:
        undo: list[Callable[[], object]] = [lambda: self._give_up(key, False)]
        try:
            outcome = self._change(lambda states: self._decide(states, method, key, args))
            if outcome is None:
                value, error = self._sleep(key, timeout, lost, functools.partial(self._see, key))
            else:
                value, error = outcome.value, outcome.error
                if outcome.lent:
                    undo.append(lambda: self._return(key))
        except BaseException:  # Ctrl-C: nobody would get what the call ended with
            with interrupts_deferred:
                undo[-1]()
            raise
        if error:
            raise error
        return value

    def _decide(self, states: RecordedStates, method: str, key: WaiterKey, args: Sequence[Any]) -> CallOutcome | None:
        outcome = states.decide(self._part, method, key, args)
        if outcome and outcome.lent:
            states.taken(self._part, key)
        return outcome

    def _return(self, key: WaiterKey) -> None:
        """Give back what a call has ended with: a lock or permit, or the action of a barrier."""
        method = "abort" if self.words[KIND] == BARRIER else "release"
        self._change(lambda states: states.decide(self._part, method, key, ()))

    def _sleep(
        self,
        key: WaiterKey,
        timeout: float | None,
        lost: OnLost,
        see: _See,
    ) -> _Result:
        """Sleep until a call has ended; `see` says how, if it has, and is told when the time is over."""
        berth = self._client.berths[key[1]]
        if timeout is not None and (ended := self._sleep_until(berth, time.monotonic() + timeout, lost, see)):
            return ended
        while True:  # also after a timeout: a condition may have to wait for its lock
            self._client.alarm.sleep_at(berth)
            ended = see(False)
            if ended:
                return ended
            if self.connection.closed:
                raise lost(self)

    def _sleep_until(self, berth: int, due: float, lost: OnLost, see: _See) -> _Result | None:
        while True:
            left_s = due - time.monotonic()
            if left_s <= 0:
                return see(True)
            wait_at(berth, min(LOOK_S, left_s))
            if ended := see(False):
                return ended
            if self.connection.closed:
                raise lost(self)

    def _see(self, key: WaiterKey, is_late: bool) -> _Result | None:
        ended = self._give_up(key, True) if is_late else self._change(lambda states: states.collect(key))
        return (ended.value, ended.error) if ended else None

    def _give_up(self, key: WaiterKey, timed_out: bool) -> CallOutcome | None:
        return self._change(lambda states: states.give_up(self._part, key, timed_out))

    def _change(self, decide: Callable[[RecordedStates], Any]) -> Any:
        """Change the record, and wake the threads whose calls have ended now."""
        waiters = WaiterTable(self._client.name_of)
        made, woken = self.record.change(lambda states: (decide(states), states.woken), waiters)
        self._wake([waiter.key for waiter in woken])
        return made

    def _wake(self, keys: Sequence[WaiterKey]) -> None:
        for process, number, _ in keys:
            if number < NUM_BERTHS:
                post(self._client.arena.berth(process, number))
            else:
                self._ring()


class _Inherited:
    """Stands for a link in a forked child: it is the parent's."""

    closed = "a forked child has links of its own"


_all_calls: WeakSet[HostCalls] = WeakSet()


def calls_to(client: DepotClient, target: int, slot: int, part: int, ring: Callable[[], object]) -> HostCalls | None:
    """Return the calls to an object; None if the record is that of another one, because it is gone."""
    calls = HostCalls(client, slot, part, ring)
    return calls if calls.words[TARGET] == target else None


def _leave_all() -> None:
    """End these calls in a forked child: they are made over its parent's links."""
    for calls in list(_all_calls):
        calls.connection = _Inherited()


on_fork.append(_leave_all)


__all__ = ["BerthsTaken", "HostCalls", "OnLost", "calls_to"]
