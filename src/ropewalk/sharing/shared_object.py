"""Handles of shared objects: queues, locks and connections as the processes that use them see them.

    queue.get(timeout=2) ─▶ SharedObject._ask ─▶ RpcConnection ══▶ depot: waits there ══▶ value
    pickle.dumps(queue)  ─▶ the depot learns that a handle is under way ─▶ loads ─▶ and that it arrived

A handle can be pickled and sent anywhere. The depot keeps the object while any process of the run has a handle.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ropewalk.calls.messages import Call
from ropewalk.calls.payloads import Keep, PackedValue, pack_arguments, pack_item
from ropewalk.calls.pending import Lost, NotServed
from ropewalk.calls.rpc_connection import RpcConnection
from ropewalk.errors import PeerLost, PoolClosed
from ropewalk.processes.interrupts import interrupts_deferred
from ropewalk.processes.session import Session
from ropewalk.sharing.membership import SharingMember, known_member, member_of_run, on_dialled, on_fork, shown, using
from ropewalk.transport.pickle_rollback import PickleAttempt, on_rollback

if TYPE_CHECKING:
    from ropewalk.sharing.host_calls import HostCalls

_SMALL_BYTES = 64 * 1024
"""At most one larger item is unconfirmed; otherwise a fast producer would fill the memory of its own process."""


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """The location of a shared object."""

    run_id: str
    address: str
    """The address of the depot or manager that holds it."""
    target: int
    label: str
    """Its name in messages: "Queue 12 on n17"."""
    ticket: int = field(default=0, compare=False)
    """The ticket of the pickle that it came in; see `refcounts.py`."""
    slot: int = field(default=0, compare=False)
    """The place of its record in memory that its host shares; 0 if it has none."""
    part: int = field(default=0, compare=False)
    """Which of the states in that record it is."""


class SharedObject:
    """A handle of a shared object; can be pickled.

    Args:
        reference: the location of the object.
        is_new: whether this process has just made it, so that the depot already counts the handle.
    """

    def __init__(self, reference: ObjectLocation, *, is_new: bool = False) -> None:
        self._reference = reference
        self._pid = 0  # the process in which this handle is counted
        self._count(is_new=is_new)

    def __del__(self) -> None:
        if self.__dict__.get("_pid") == os.getpid():
            _let_go(self._reference)

    def _count(self, *, is_new: bool = False) -> None:
        if _hold(self._reference, is_new=is_new):
            self._pid = os.getpid()

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), self._lend(), self._facts())

    def _lend(self) -> ObjectLocation:
        """Keep the object alive until a handle that is being pickled has arrived; returns the reference for it."""
        reference = replace(self._reference, ticket=new_ticket())
        _lend(reference)
        return reference

    def _give_back(self) -> None:
        """Release this handle, once; the depot learns of it before the next call to it."""
        if self.__dict__.pop("_pid", None) == os.getpid():  # a forked child that never used it is not counted
            with contextlib.suppress(PeerLost):
                member = member_of_run(self._reference.run_id)
                _drop(member, self._reference)

    def _facts(self) -> dict[str, Any]:
        """Return the attributes that are pickled with the reference, so that the copy has them as well."""
        return {}

    def _ask(
        self,
        method: str,
        *args: Any,
        timeout: float | None = None,
        over: RpcConnection | None = None,
        keep: Keep | None = None,
    ) -> Any:
        """Call a method of the object's state, and return its result.

        Args:
            method: the name of a method of the state.
            args: plain values.
            timeout: seconds that the call may wait there; the state decides how it ends then.
            over: the link to the depot that the arguments are meant for; by default the present one.
            keep: called with values that come with the answer, pickled.

        Raises:
            PeerLost: the depot or its host is gone.
            Exception: raised by the state.
        """
        packed = pack_arguments(None, (threading.get_ident(), *args), {}, keep=False)
        return self._call(over or self._connection(), method, packed, timeout, keep)

    def _ask_with(self, method: str, item: Any) -> Any:
        """Call a method that takes one item, which stays opaque until it is used; otherwise like `_ask`.

        Args:
            method: the name of a method of the state.
            item: the item.

        Raises:
            NotPicklable: the item cannot be sent.
        """
        with PickleAttempt():  # handles in an item that is not accepted are not under way
            connection = self._connection()
            packed = pack_item(connection.link, item)
            try:
                return self._call(connection, method, packed, None)
            finally:
                packed.close()

    def _post(
        self,
        connection: RpcConnection,
        many: str,
        packed: PackedValue,
        claim: Callable[[], bool | None] | None = None,
    ) -> bool | None:
        """Send a small item, perhaps batched with others; see `Batcher.put`."""
        try:
            return connection.batcher.put(self._reference.target, many, packed.parts[0], claim)
        except Lost as error:
            raise self._lost(error, connection) from None

    def _settle(self) -> None:
        """Wait until everything sent before has arrived."""
        reference = self._reference
        member_of_run(reference.run_id).ask(reference.address, "ping")

    def _connection(self) -> RpcConnection:
        if self._pid != os.getpid():  # forked since: this process has no link yet, and counts its own handles
            self._count()
        return member_of_run(self._reference.run_id).connection_to(self._reference.address, self._reference.label)

    def _call(
        self,
        connection: RpcConnection,
        method: str,
        packed: PackedValue,
        timeout: float | None,
        keep: Keep | None = None,
        place: int = -1,
    ) -> Any:
        if packed.fds and not connection.link.stream.carries_fds:
            packed = packed.unfolded()
        if timeout is not None:
            timeout = max(0.0, float(timeout))  # only floats can be sent; NaN counts as zero
        message = Call(0, self._reference.target, method, False, timeout, (), packed.shared, 1 + place)
        try:
            return connection.exchange(message, packed, keep)
        except (Lost, NotServed) as error:
            raise self._lost(error, connection) from None

    def _lost(self, error: Lost | NotServed, connection: RpcConnection) -> PeerLost:
        reference = self._reference
        if isinstance(error, NotServed):
            why = "its depot no longer has it, because nothing referred to it"
        else:
            why = f"nobody answers at {shown(reference.address)} any more: {connection.closed or error}"
        return self._is_gone(why)

    def _gone(self, calls: HostCalls) -> PeerLost:
        """Return the error to raise if the depot of a call in shared memory is gone."""
        return self._is_gone(f"nobody answers at {shown(self._reference.address)} any more: {calls.connection.closed}")

    def _is_gone(self, why: str) -> PeerLost:
        return PeerLost(f"the {self._reference.label} is gone: {why}", peer=self._reference.address)


def limited(timeout: float | None) -> float | None:
    """Return a timeout that is not negative; NaN counts as zero."""
    return None if timeout is None else max(0.0, float(timeout))


def is_small(packed: PackedValue) -> bool:
    """Whether an item may be batched with others."""
    return len(packed.parts) == 1 and len(packed.parts[0]) < _SMALL_BYTES


def create(kind: str, *args: Any, label: str = "", session: Session | None = None) -> list[ObjectLocation]:
    """Make an object in the depot of this host, held by this process.

    Args:
        kind: a member of the family in `sharing/states`.
        args: arguments of its constructor; for a condition, the reference of its lock.
        label: its name in messages; by default its kind.
        session: the session of its run, in a launcher.

    Returns:
        The references of its handles: one, or both ends of a pipe.

    Raises:
        StartFailed: there is no depot, and none can be started.
        PeerLost: the depot is gone.
    """
    if args and isinstance(args[0], ObjectLocation):
        lock = args[0]
        return create_at(member_of_run(lock.run_id), lock.address, kind, lock.target, label=label)
    with using(session) as member:
        with contextlib.suppress(PeerLost):  # the depot has just died, and is replaced
            return create_at(member, member.depot(), kind, *args, label=label)
        return create_at(member, member.depot(), kind, *args, label=label)


def create_at(member: SharingMember, address: str, kind: str, *args: Any, label: str = "") -> list[ObjectLocation]:
    """Make an object in a depot or manager at an address; otherwise like `create`."""
    host, targets, slot, part = member.ask(address, "create", kind, *args)
    return [
        ObjectLocation(member.run_id, address, target, f"{label or kind} {target} on {host}", slot=slot, part=part)
        for target in targets
    ]


# The handles that this process has, and those that are under way

_tickets = itertools.count(int.from_bytes(os.urandom(7)))


def new_ticket() -> int:
    """Return a number for one pickle that is unique in the run."""
    return next(_tickets)


_held: Counter[ObjectLocation] = Counter()
_held_lock = threading.Lock()
_dropped: deque[ObjectLocation] = deque()


def _hold(reference: ObjectLocation, *, is_new: bool) -> bool:
    """Count one more handle here, and tell the depot; False if the depot does not answer, so that it is not counted."""
    with contextlib.suppress(PeerLost, PoolClosed):  # the next use of the handle raises it
        member = member_of_run(reference.run_id)
        connection = member.connection_to(reference.address)
        connection.wait_for_room()  # without the lock, which the loop needs to make room
        with interrupts_deferred, _held_lock:  # messages about an object must arrive in order
            if not _held[reference]:
                member.used()
            _held[reference] += 1
            if not is_new:
                member.tell(connection, "hold", reference.target, reference.ticket)
        return True
    return False


def _lend(reference: ObjectLocation) -> None:
    """Tell the depot that a handle is being pickled, so that the object lives until it has arrived."""
    with contextlib.suppress(PeerLost):
        member = member_of_run(reference.run_id)
        connection = member.connection_to(reference.address)
        connection.wait_for_room()
        member.tell(connection, "lend", reference.target, reference.ticket)
        on_rollback(lambda: member.tell(connection, "take_back", reference.target, reference.ticket))


def _let_go(reference: ObjectLocation) -> None:
    """Release a handle. This may run between any two steps of any thread, so the loop does the rest."""
    with contextlib.suppress(Exception):  # this interpreter has ended
        member = known_member(reference.run_id)  # without a lock, which this very thread may hold
        if member:
            _dropped.append(reference)
            member.loop.call_soon(_drop_some)


def _drop_some() -> None:
    while _dropped:
        reference = _dropped.popleft()
        with contextlib.suppress(PeerLost):
            _drop(member_of_run(reference.run_id), reference)


def _drop(member: SharingMember, reference: ObjectLocation) -> None:
    """Count one handle less; tells the depot of the last one."""
    with interrupts_deferred, _held_lock:
        _held[reference] -= 1
        if _held[reference] > 0:
            return
        del _held[reference]
        member.let_go(reference.address, reference.target)
    member.unused()


def _forget_all() -> None:
    """Forget all counts in a forked child: its handles are counted anew when they are used."""
    global _held_lock, _tickets
    _held_lock = threading.Lock()
    _tickets = itertools.count(int.from_bytes(os.urandom(7)))
    _held.clear()
    _dropped.clear()


on_fork.append(_forget_all)


def _hold_again(member: SharingMember, address: str, connection: RpcConnection) -> None:
    """Hold all handles again over a new link to a depot, which has dropped those held over the old one, if any."""
    with interrupts_deferred, _held_lock:
        for reference in _held:
            if (reference.run_id, reference.address) == (member.run_id, address):
                member.tell(connection, "hold", reference.target, 0)


on_dialled.append(_hold_again)


def _rebuild(cls: type[SharedObject], reference: ObjectLocation, facts: dict[str, Any]) -> SharedObject:
    """Rebuild a handle that was sent."""
    made = cls.__new__(cls)
    SharedObject.__init__(made, reference)
    made.__dict__.update(facts)
    return made


__all__ = ["ObjectLocation", "SharedObject", "create", "create_at", "is_small", "limited", "new_ticket"]
