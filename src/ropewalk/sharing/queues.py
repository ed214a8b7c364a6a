"""Queues between any processes of a run: `multiprocessing.Queue`, `JoinableQueue` and `SimpleQueue`.

    put ─ pickled here, once ─▶ ring in memory of this host, or depot: a queue of opaque items ─▶ get ─ unpickled there

`put` pickles immediately, so an item that cannot be pickled raises where it is put. It returns when the item is in the
queue. Between processes of one host that is memory that they share (`host_queue.py`). Large items, and queues of which
another host takes part, are with the depot. There small items of an unbounded queue are only sent, many at a time, with
at most about 1000 unconfirmed, and a process waits for them before it ends. The same holds for items of a bounded queue
that has granted room for them (`put_credit.py`). Readers get items in the order in which they asked; an item that was
being sent to a reader that dies goes to the next one. A reader that asks often gets some items before it asks
(`prefetch.py`), unless another reader wants them.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import time
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ropewalk.calls.payloads import PackedValue, atom, pack_item
from ropewalk.calls.rpc_connection import RpcConnection
from ropewalk.processes.session import Session
from ropewalk.processes.shared_sessions import session_of
from ropewalk.sharing.depot_client import depot_client_of
from ropewalk.sharing.host_calls import BerthsTaken
from ropewalk.sharing.host_queue import HostQueue, left_s, queue_at
from ropewalk.sharing.membership import member_of_run
from ropewalk.sharing.prefetch import PrefetchBuffer
from ropewalk.sharing.put_credit import PutCredit
from ropewalk.sharing.queue_memory import sealed
from ropewalk.sharing.queue_ring import Hand
from ropewalk.sharing.ringed_queue import QueueInRing
from ropewalk.sharing.shared_object import ObjectLocation, SharedObject, create, is_small, limited
from ropewalk.transport.pickle_rollback import PickleAttempt
from ropewalk.user_frames import shortened, user_frames_only

if TYPE_CHECKING:
    from ropewalk.transport.frames import Part


class Queue(SharedObject):
    """A first in, first out queue; any process that it is passed to may put and get.

    Example:
        >>> import ropewalk as rw
        >>> queue = rw.Queue()
        >>> process = rw.Process(target=queue.put, args=("done",))
        >>> process.start()
        >>> queue.get()
        'done'

    Args:
        maxsize: `put` waits while the queue holds this many items; 0 or less: never.
        session: the session of its run; by default that of this process.
        ctx: a context whose session is used instead; a context of multiprocessing has no effect.

    Raises:
        StartFailed: there is no depot to hold it, and none can be started.
    """

    _JOINABLE = False
    _closed = False
    _maxsize = 0
    _ahead: PrefetchBuffer | None = None
    _room: PutCredit | None = None
    _calls: HostQueue | None = None
    """Its calls in memory that this host shares, if it is of this host."""

    def __init__(self, maxsize: int = 0, *, session: Session | None = None, ctx: Any = None) -> None:
        maxsize = operator.index(maxsize)
        session = session or session_of(ctx)
        (reference,) = create("queue", maxsize, self._JOINABLE, label=type(self).__name__, session=session)
        self._attach(reference, maxsize)

    @classmethod
    def at(cls, reference: ObjectLocation, maxsize: int) -> Queue:
        """Return a handle of a queue that this process has made at `reference`, for example in a manager."""
        made = cls.__new__(cls)
        made._attach(reference, maxsize)
        return made

    def _attach(self, reference: ObjectLocation, maxsize: int) -> None:
        SharedObject.__init__(self, reference, is_new=True)
        self._maxsize = maxsize

    def _facts(self) -> dict[str, Any]:
        return {"_maxsize": self._maxsize}

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put an item at the end.

        Args:
            obj: pickled before this returns.
            block: wait while the queue is full.
            timeout: seconds to wait at most; None waits for ever.

        Raises:
            queue.Full: there was no room, within `timeout` seconds if it waited.
            ValueError: this handle is closed.
            NotPicklable: the item cannot be sent; `path` says which part of it.
            PeerLost: the depot of the queue is gone.
        """
        if self._closed:
            self._check_open()
        try:
            calls = self._present_calls()
            due = None if timeout is None and block else _due(timeout, block)
            content = atom(obj)
            if content is not None:
                if not (calls and self._put_here(calls, content, 1, due)):
                    self._put_at_depot(PackedValue((content,)), left_s(due))
                return
            with PickleAttempt():  # handles in an item that is not accepted are not under way
                packed = pack_item(calls.link if calls else self._connection().link, obj)
                try:
                    if packed.fds or not (calls and self._put_here(calls, *sealed(packed.parts), due)):
                        self._put_at_depot(packed, left_s(due))
                finally:
                    packed.close()
        except KeyboardInterrupt as error:
            shortened(error)
            raise

    def _put_here(self, calls: HostQueue, content: Part, num_parts: int, due: float | None) -> bool:
        try:
            return calls.put(content, num_parts, due, self._gone)
        except BerthsTaken:
            return False

    def _put_at_depot(self, packed: PackedValue, timeout: float | None) -> None:
        """Put an item that the depot has to take; a small one is only sent where there is room for it."""
        connection = self._connection()
        if not is_small(packed):
            self._call(connection, "put", packed, timeout)
        elif self._maxsize > 0:
            self._put_with_bounds(connection, packed, timeout)
        else:
            self._send(connection, packed)

    def _send(
        self, connection: RpcConnection, packed: PackedValue, claim: Callable[[], bool | None] | None = None
    ) -> bool | None:
        calls = self._calls
        if calls is None:
            return self._post(connection, "put_many", packed, claim)
        calls.has_sent = True
        try:
            return self._post(connection, "put_many", packed, claim)
        finally:
            calls.has_sent = True  # another thread may have waited for what was sent before this

    def _put_with_bounds(self, connection: RpcConnection, packed: PackedValue, timeout: float | None) -> None:
        """Put an item where there is room; ask the depot for the item's room, then for further room."""
        room = self._room_at(connection)
        if room and self._fills(room, packed):
            return
        place = -1
        is_asking = room is not None and room.asking.acquire(blocking=False)
        try:
            if room and is_asking:
                if self._fills(room, packed):  # another thread has just asked
                    return
                place = room.place
            num_more = self._call(connection, "put", packed, timeout, place=place)
            if room and is_asking and num_more:
                room.keep(num_more)
        finally:
            if room and is_asking:
                room.asking.release()

    def _room_at(self, connection: RpcConnection) -> PutCredit | None:
        room = self._room
        if room is None or room.connection is not connection:  # a forked child has another connection
            found = connection.acks.lot()
            room = self._room = PutCredit(connection, *found) if found else None
        return room

    def _fills(self, room: PutCredit, packed: PackedValue) -> bool:
        """Claim a place and send an item into it; False if there is no place."""
        while room.is_left:
            is_sent = self._send(room.connection, packed, room.claim)
            if is_sent is not None:
                return is_sent
            self._settle()
        return False

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the first item.

        Args:
            block: wait while the queue is empty.
            timeout: seconds to wait at most; None waits for ever.

        Returns:
            The item.

        Raises:
            queue.Empty: there was no item, within `timeout` seconds if it waited.
            ValueError: this handle is closed.
            PeerLost: the depot of the queue is gone, with its items.
        """
        if self._closed:
            self._check_open()
        ahead = self._ahead
        if ahead is not None and ahead.is_mine:
            part = ahead.take(self._settle)
            if part is not None:
                return ahead.value(part)
        try:
            due = None if timeout is None and block else _due(timeout, block)
            while True:
                calls = self._present_calls()
                if calls is None:
                    return self._get("get", left_s(due))
                hand: Hand = [None]
                try:
                    if calls.take(hand, due, self._gone):
                        return calls.value(hand)
                except BerthsTaken:
                    return self._get("get", left_s(due))
                except Exception:
                    raise
                except BaseException:  # Ctrl-C
                    calls.keep(hand)
                    raise
                with contextlib.suppress(QueueInRing):
                    # (What the ring has and cannot do, the depot has to: not the same again.)
                    return self._get("get_or_leave" if calls.is_in_depot else "get", left_s(due))
        except KeyboardInterrupt as error:
            shortened(error)
            raise

    def _get(self, method: str, timeout: float | None) -> Any:
        """Ask the depot for an item; for several, if no other thread does."""
        ahead = self._ahead
        if ahead is None or not ahead.is_mine or ahead.connection.closed:
            connection = self._connection()
            found = connection.acks.lot()
            ahead = self._ahead = PrefetchBuffer(connection, *found, self._reference.target) if found else None
        if ahead is None or not ahead.asking.acquire(blocking=False):
            return self._ask(method, timeout=timeout)
        try:
            part = ahead.take(self._settle)
            if part is not None:  # another thread has just asked
                return ahead.value(part)
            return self._ask(method, ahead.place, timeout=timeout, over=ahead.connection, keep=ahead.keep)
        finally:
            ahead.asking.release()

    def _calls_here(self) -> HostQueue | None:
        """Return the calls to it in memory that this host shares; None if its depot has to make them."""
        self._calls = None
        reference = self._reference
        if reference.slot:
            connection = self._connection()
            member = member_of_run(reference.run_id)
            client = depot_client_of(member, reference.address, connection)
            if client:
                settle = functools.partial(member.ask, reference.address, "ping")
                ring = functools.partial(member.tell, connection, "ring", reference.target)
                self._calls = queue_at(client, reference.target, reference.slot, ring, settle)
        return self._calls

    def _present_calls(self) -> HostQueue | None:
        """Return what `_calls_here` has found, if that is still of use."""
        calls = self._calls
        return self._calls_here() if calls is None or calls.connection.closed else calls

    def _sizes(self) -> tuple[int, int] | None:
        calls = self._present_calls()
        return calls.sizes() if calls else None

    def put_nowait(self, obj: Any) -> None:
        """As `put(obj, False)`."""
        self.put(obj, False)

    def get_nowait(self) -> Any:
        """As `get(False)`."""
        return self.get(False)

    def qsize(self) -> int:
        """Return the number of items in it: exact at the moment of the call, on every system."""
        sizes = self._sizes()
        return sizes[0] if sizes else self._ask("qsize")

    def empty(self) -> bool:
        """Whether it holds no items at this moment."""
        sizes = self._sizes()
        return not sizes[0] if sizes else self._ask("empty")

    def full(self) -> bool:
        """Whether `put` would wait at this moment."""
        sizes = self._sizes()
        return 0 < sizes[1] <= sizes[0] if sizes else self._ask("full")

    def close(self) -> None:
        """Close this handle: `put` and `get` then raise ValueError. May be called twice."""
        self._closed = True

    def join_thread(self) -> None:
        """Wait until everything that this process has put is in the queue.

        Raises:
            ValueError: `close` was not called before.
            PeerLost: the depot of the queue is gone.
        """
        if not self._closed:
            raise ValueError(f"{self!r} is not closed; call close() first")
        self._settle()

    def cancel_join_thread(self) -> None:
        """Do nothing: `put` has already sent the items, so there is no thread to wait for."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._reference.target} at {self._reference.address.partition('|')[0]}>"

    __class_getitem__: ClassVar[Any] = classmethod(cast("Any", types.GenericAlias))

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"{self!r} is closed")


def _due(timeout: float | None, block: bool) -> float | None:
    """Return the time at which a call ends, as `left_s` takes it."""
    limit_s = limited(timeout) if block else 0.0
    return time.monotonic() + limit_s if limit_s else limit_s


class JoinableQueue(Queue):
    """A queue that can be waited for until each of its items was processed."""

    _JOINABLE = True

    def task_done(self) -> None:
        """Mark one item that was taken as processed.

        Raises:
            ValueError: it was called more times than items were put.
        """
        calls = self._present_calls()
        if not (calls and calls.finish()):
            self._ask("task_done")

    @user_frames_only
    def join(self) -> None:
        """Wait until `task_done` was called for each item that was put."""
        calls = self._present_calls()
        with contextlib.suppress(BerthsTaken):
            if calls and calls.join(self._gone):
                return
        self._ask("join")


class SimpleQueue(Queue):
    """A queue without bound, timeouts and counts, as in the standard library."""

    def __init__(self, *, session: Session | None = None, ctx: Any = None) -> None:
        super().__init__(session=session, ctx=ctx)

    def put(self, obj: Any) -> None:  # type: ignore[override]
        """Put an item at the end; see `Queue.put`."""
        try:
            Queue.put(self, obj)
        except KeyboardInterrupt as error:
            shortened(error)
            raise

    def get(self) -> Any:  # type: ignore[override]
        """Take the first item, waiting for one; see `Queue.get`."""
        try:
            return Queue.get(self)
        except KeyboardInterrupt as error:
            shortened(error)
            raise

    def empty(self) -> bool:
        """Whether it holds no items at this moment."""
        self._check_open()
        return Queue.empty(self)

    def close(self) -> None:
        """Close this handle: `put`, `get` and `empty` then raise OSError. May be called twice."""
        Queue.close(self)

    def _check_open(self) -> None:
        if self._closed:
            raise OSError("handle is closed")


__all__ = ["JoinableQueue", "Queue", "SimpleQueue"]
