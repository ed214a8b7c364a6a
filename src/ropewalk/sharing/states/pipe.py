"""A pipe: two ends, and one line of messages in each direction.

    end 0 ── send ─▶ [ at most 16 MiB ] ─▶ recv ── end 1
    end 0 ◀─ recv ◀─ [ at most 16 MiB ] ◀─ send ── end 1        only this one if the pipe is not duplex

An end is closed when nobody holds it any more. The other end then reads what is left, and hears at last who held it.
"""

from __future__ import annotations

import errno
from collections import deque
from typing import ClassVar

from ropewalk.sharing.states.line import Line
from ropewalk.sharing.states.waiting import Item, Outcome, Waiter

ROOM_BYTES = 16 << 20
"""What one direction holds before senders wait. A socket pair holds 200 KiB; this is enough for two large arrays on
their way and little beside the memory of a depot."""


class PipeState:
    """What the two connections of `multiprocessing.Pipe` do.

    Args:
        duplex: whether both ends send and receive; if not, end 0 only receives and end 1 only sends.
    """

    METHODS: ClassVar = frozenset({"send", "recv", "poll"})
    SEALED: ClassVar = frozenset({"send"})

    def __init__(self, duplex: bool = True) -> None:
        self._duplex = duplex
        self._towards = (_Direction(), _Direction())  # What is on its way to end 0, and to end 1.

    def send(self, waiter: Waiter, end: int, item: Item) -> list[Outcome]:
        """Send a message from this end, when there is room; BrokenPipeError if nobody holds the other end."""
        if end == 0 and not self._duplex:
            return [Outcome(waiter, error=OSError("connection is read-only"))]
        return self._towards[1 - end].send(waiter, item)

    def recv(self, waiter: Waiter, end: int) -> list[Outcome]:
        """Lend the next message for this end; EOFError if there is none and nobody holds the other end."""
        if end == 1 and not self._duplex:
            return [Outcome(waiter, error=OSError("connection is write-only"))]
        return self._towards[end].recv(waiter)

    def poll(self, waiter: Waiter, end: int) -> list[Outcome]:
        """Wait until `recv` would not wait: True, or False when the time is over."""
        if end == 1 and not self._duplex:
            return [Outcome(waiter, error=OSError("connection is write-only"))]
        return self._towards[end].poll(waiter)

    def end_closed(self, end: int, names_of_last_holders: str) -> list[Outcome]:
        """Hear that nobody holds this end any more.

        Args:
            end: 0 or 1.
            names_of_last_holders: for people; "" if nobody ever held it.
        """
        held_by = f", which was last held by {names_of_last_holders}" if names_of_last_holders else ""
        return self._towards[1 - end].no_sender(held_by) + self._towards[end].no_reader(held_by)

    def give_up(self, waiter: Waiter, timed_out: bool) -> list[Outcome]:
        """End a call without what it waited for, or take back what was lent to it."""
        return [outcome for way in self._towards for outcome in way.give_up(waiter, timed_out)]

    def taken(self, waiter: Waiter) -> list[Outcome]:
        """Forget what was lent to this call: it has arrived. If it was the last message, others hear the end now."""
        return [outcome for way in self._towards for outcome in way.taken(waiter)]

    def party_gone(self, process: str, name: str) -> list[Outcome]:
        """Forget the calls of this process, and hand on what was lent to it."""
        return [outcome for way in self._towards for outcome in way.party_gone(process)]


class _Direction:
    """One direction: who sends into it, the messages, and who waits for them."""

    def __init__(self) -> None:
        self._line = Line()
        self._senders: deque[tuple[Waiter, Item]] = deque()
        self._readers: deque[Waiter] = deque()
        self._pollers: list[Waiter] = []
        self._no_sender: str | None = None  # Who held it, once nobody sends any more.
        self._no_reader: str | None = None  # Who held it, once nobody reads any more.

    def send(self, waiter: Waiter, item: Item) -> list[Outcome]:
        self._senders.append((waiter, item))
        return self._settle()

    def recv(self, waiter: Waiter) -> list[Outcome]:
        self._readers.append(waiter)
        return self._settle()

    def poll(self, waiter: Waiter) -> list[Outcome]:
        self._pollers.append(waiter)
        return self._settle()

    def no_sender(self, held_by: str) -> list[Outcome]:
        self._no_sender = held_by
        closed = [Outcome(waiter, error=OSError("handle is closed")) for waiter, _ in self._senders]
        self._senders.clear()
        return closed + self._settle()

    def no_reader(self, held_by: str) -> list[Outcome]:
        self._no_reader = held_by
        waiters = [*self._readers, *self._pollers]
        self._readers.clear()
        self._pollers.clear()
        self._line.clear()
        return [Outcome(waiter, error=OSError("handle is closed")) for waiter in waiters] + self._settle()

    def give_up(self, waiter: Waiter, timed_out: bool) -> list[Outcome]:
        if self._line.give_back(waiter):
            return self._settle()
        if waiter in self._pollers:
            self._pollers.remove(waiter)
            return [Outcome(waiter, False)] if timed_out else []
        waits = waiter in self._readers or any(sender is waiter for sender, _ in self._senders)
        self._forget({waiter})
        timeout = TimeoutError("the time for this message of a pipe is over")
        # Settle in any case: a sender that leaves may have kept smaller messages behind it waiting.
        return ([Outcome(waiter, error=timeout)] if waits and timed_out else []) + self._settle()

    def taken(self, waiter: Waiter) -> list[Outcome]:
        self._line.taken(waiter)
        return self._settle()

    def party_gone(self, process: str) -> list[Outcome]:
        waiters = {*self._readers, *self._pollers, *(waiter for waiter, _ in self._senders)}
        self._forget({waiter for waiter in waiters if waiter.party.process == process})
        self._line.give_back_all_of(process)
        return self._settle()

    def _forget(self, waiters: set[Waiter]) -> None:
        self._senders = deque(entry for entry in self._senders if entry[0] not in waiters)
        self._readers = deque(waiter for waiter in self._readers if waiter not in waiters)
        self._pollers = [waiter for waiter in self._pollers if waiter not in waiters]

    def _settle(self) -> list[Outcome]:
        """Serve readers, let senders in, and tell everybody what cannot come any more.

        Those that poll are told before the sender goes on, who may tell them by another way to look.
        """
        outcomes: list[Outcome] = []
        polled: list[Outcome] = []
        while True:
            if self._senders and self._no_reader is not None:
                outcomes.append(Outcome(self._senders.popleft()[0], error=self._broken_pipe()))
            elif self._readers and self._line:
                outcomes.append(self._line.lend(self._readers.popleft()))
            elif self._senders and self._fits(self._senders[0][1]):
                waiter, item = self._senders.popleft()
                self._line.append(item)
                outcomes.append(Outcome(waiter))
            elif self._readers and self._at_end:
                outcomes.append(Outcome(self._readers.popleft(), error=self._end_of_file()))
            elif self._pollers and (self._line or self._at_end):
                polled.append(Outcome(self._pollers.pop(0), True))
            else:
                return polled + outcomes

    def _fits(self, item: Item) -> bool:
        # A message larger than the room goes alone.
        return not self._line or self._line.size_bytes + item.size_bytes <= ROOM_BYTES

    @property
    def _at_end(self) -> bool:
        # What is lent may still come back, and belongs to another reader then.
        return self._no_sender is not None and not self._line and not self._line.num_lent

    def _end_of_file(self) -> EOFError:
        return EOFError(f"nobody holds the other end of this pipe{self._no_sender}")

    def _broken_pipe(self) -> BrokenPipeError:
        return BrokenPipeError(errno.EPIPE, f"nobody holds the other end of this pipe{self._no_reader}")
