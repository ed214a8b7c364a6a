"""A descriptor that is readable while `poll` of a connection would be true: for `select`, asyncio and `wait`.

    depot ◀── poll, pending there ── Readiness ── fileno() ──▶ select
      └─ a message, or the end ─▶ answered ─▶ readable ─ recv ─▶ the next poll is sent

It exists only if a descriptor was requested, because a pending poll makes the loop read the link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
from collections.abc import Callable

from ropewalk.calls.messages import Call
from ropewalk.calls.payloads import pack_arguments
from ropewalk.calls.pending import Lost, PendingCall
from ropewalk.calls.rpc_connection import MAX_IN_FLIGHT, RpcConnection
from ropewalk.errors import PeerLost
from ropewalk.transport.loop import Loop

_MOST = MAX_IN_FLIGHT - 124
"""This many connections of one depot may have a descriptor in one process; the remaining calls are for other purposes.
"""


class Readiness:
    """The descriptor of one connection, and its pending poll.

    Args:
        target: the id of the pipe's end in its depot.
        loop: the loop of this process's links to depots.
    """

    def __init__(self, target: int, loop: Loop) -> None:
        self.pid = os.getpid()
        """The process that owns this object; a forked child has its own."""
        self._target = target
        self._loop = loop
        self._signal = _Signal()
        self._lock = threading.Lock()
        """Held briefly while the descriptor changes."""
        self._asking = threading.Lock()
        """Held by the thread that asks the depot; answers arrive meanwhile, so their handlers must not need it."""
        self._standing: _StandingPoll | None = None
        self._connection: RpcConnection | None = None
        self._certain = False

    def fileno(self) -> int:
        """The descriptor."""
        return self._signal.fd

    def refresh(self, connection_to: Callable[[], RpcConnection], poll: Callable[[], bool]) -> None:
        """Make the descriptor show the present state.

        Args:
            connection_to: returns the connection to the depot.
            poll: asks the depot whether there is a message.
        """
        with self._asking:
            while not (self._certain and self._stands):
                try:
                    standing = self._stand(connection_to)
                    is_ready = poll()  # on the same link, so the depot has the pending poll first
                except (Lost, PeerLost):
                    is_ready, standing = True, None
                with self._lock:
                    if is_ready:
                        self._signal.show(True)
                        return
                    # If the pending poll was answered, another process has taken that message since.
                    if standing and not standing.answered:
                        self._signal.show(False)
                        self._certain = True

    def again(self, connection_to: Callable[[], RpcConnection]) -> None:
        """Watch for the next message, after one was taken."""
        with self._asking:
            if self._stands:
                return  # the message was taken without it
            with self._lock:
                self._signal.show(False)
            try:
                self._stand(connection_to)
            except (Lost, PeerLost):
                with self._lock:
                    self._signal.show(True)

    def heard(self, standing: _StandingPoll) -> None:
        """Handle the answer to a poll: there is a message, or the end, or the depot is gone."""
        with self._lock:
            if standing is self._standing:
                self._signal.show(True)

    def close(self) -> None:
        """Close the descriptor; may be called twice."""
        with self._lock:
            self._signal.close()
            standing, self._standing = self._standing, None
        if standing and self._connection and not standing.answered:
            self._connection.cancel(standing)

    def abandon(self) -> None:
        """Close the descriptor where a lock may be held already: in a finalizer, or in a forked child."""
        if self.pid != os.getpid():
            self._signal.close()
        elif self._lock.acquire(blocking=False):
            self._signal.close()
            self._lock.release()
            self._loop.call_soon(self.close)
        else:
            self._loop.call_soon(self.close)

    @property
    def _stands(self) -> bool:
        return self._standing is not None and not self._standing.answered

    def _stand(self, connection_to: Callable[[], RpcConnection]) -> _StandingPoll:
        """Send a poll that stays pending at the depot.

        Raises:
            Lost, PeerLost: the link has ended.
            OSError: there are too many pending polls.
        """
        standing = self._standing
        if standing and self._stands:
            return standing
        connection = connection_to()
        with self._lock:
            if connection.num_pending >= _MOST:
                raise OSError(
                    errno.EMFILE,
                    f"{connection.num_pending} calls of this process wait at one depot, most of them for "
                    f"connections whose descriptor was asked for (at most {_MOST}); use threads with recv() for some",
                )
            standing = self._standing = _StandingPoll(connection.where, self)
            self._connection = connection
            self._certain = False
        packed = pack_arguments(None, (threading.get_ident(),), {}, keep=True)
        connection.begin(Call(0, self._target, "poll", False, None, (), packed.shared, 0), packed, standing)
        connection.watch(standing)
        connection.flush()
        return standing


class _StandingPoll(PendingCall):
    """A poll without timeout; the loop handles its answer."""

    __slots__ = ("_readiness",)
    alone = True

    def __init__(self, where: str, readiness: Readiness) -> None:
        super().__init__(where)
        self._readiness = readiness

    def settle(self) -> None:
        self._readiness.heard(self)


class _Signal:
    """A descriptor whose readability can be set."""

    def __init__(self) -> None:
        self._readable = False
        self._fd = self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def show(self, readable: bool) -> None:
        """Make the descriptor readable or not, if it is still open."""
        if self._fd == -1 or readable == self._readable:
            return
        self._readable = readable
        if readable:
            os.write(self._fd, _ONE)
        else:
            os.read(self._fd, len(_ONE))

    def close(self) -> None:
        """Close the descriptor; may be called twice."""
        fd, self._fd = self._fd, -1
        if fd != -1:
            with contextlib.suppress(OSError):
                os.close(fd)


_ONE = (1).to_bytes(8, sys.byteorder)
"""The bytes to write to an eventfd."""

__all__ = ["Readiness"]
