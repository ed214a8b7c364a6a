"""A pipe: two ends of a wire; processes of the depot's host hold the ends, others reach them through this state. Pure.

    process here ─ end 0 ═══ wire ═══ end 1 ─ process here
                     └── PipeState ──┘
                      recv ▲  ▼ send ── processes on other hosts

An end is closed when no process holds it any more. The other end then reads the remaining messages, and learns last
which process held it. A message is lent to a process on another host until it has arrived there; otherwise it goes to
the next one that asks here.
"""

from __future__ import annotations

import errno
from collections import deque
from typing import ClassVar, Protocol

from ropewalk.sharing.states.leased_queue import LeasedQueue
from ropewalk.sharing.states.waiting import CallOutcome, Passed, SizedItem, Waiter


class Wire(Protocol):
    """One end of a wire; nothing here waits."""

    @property
    def fd(self) -> int:
        """The descriptor of the end."""
        ...

    @property
    def at_end(self) -> bool:
        """Whether `receive` has found the end of the stream."""
        ...

    def receive(self) -> SizedItem | None:
        """Return the next message; None if there is none now."""
        ...

    def is_readable(self) -> bool:
        """Whether `receive` would find a message, or the end."""
        ...

    def send(self, item: SizedItem) -> bool:
        """Send a message, if there is room; BrokenPipeError if no process has the other end."""
        ...

    def watch(self, reading: bool, writing: bool) -> None:
        """Watch for something to read, or for room; `PipeState.ready` is called then."""
        ...

    def close(self) -> None:
        """Close the depot's descriptor; processes that have the end keep theirs."""
        ...


class PipeState:
    """The state of the two connections of a `multiprocessing.Pipe`.

    Args:
        wires: both ends of the wire.
        duplex: whether both ends send and receive; if not, end 0 only receives and end 1 only sends.
    """

    METHODS: ClassVar = frozenset({"open", "last_holders", "send", "recv", "poll"})
    SEALED: ClassVar = frozenset({"send"})

    def __init__(self, wires: tuple[Wire, Wire], duplex: bool = True) -> None:
        self._duplex = duplex
        self._ends = (_End(wires[0]), _End(wires[1]))

    def open(self, waiter: Waiter, end: int) -> list[CallOutcome]:
        """Give a process of this host its own descriptor of this end, which replaces the other methods for it."""
        return [CallOutcome(waiter, Passed(self._ends[end].wire.fd))]

    def last_holders(self, waiter: Waiter, end: int) -> list[CallOutcome]:
        """Return the last holders of the other end, for an error; "" if it has holders, or never had one."""
        return [CallOutcome(waiter, self._ends[end].held_by)]

    def send(self, waiter: Waiter, end: int, item: SizedItem) -> list[CallOutcome]:
        """Send a message from this end, when there is room; BrokenPipeError if no process holds the other end."""
        if end == 0 and not self._duplex:
            return [CallOutcome(waiter, error=OSError("connection is read-only"))]
        this = self._ends[end]
        this.senders.append((waiter, item))
        outcomes = this.settle()
        # Polls are answered before the sender goes on, which may tell the pollers by another channel to look.
        return self._ends[1 - end].settle() + outcomes

    def recv(self, waiter: Waiter, end: int) -> list[CallOutcome]:
        """Lend the next message for this end; EOFError if there is none and no process holds the other end."""
        if end == 1 and not self._duplex:
            return [CallOutcome(waiter, error=OSError("connection is write-only"))]
        this = self._ends[end]
        this.readers.append(waiter)
        return this.settle()

    def poll(self, waiter: Waiter, end: int) -> list[CallOutcome]:
        """Wait until `recv` would not wait: True, or False on a timeout."""
        if end == 1 and not self._duplex:
            return [CallOutcome(waiter, error=OSError("connection is write-only"))]
        this = self._ends[end]
        this.pollers.append(waiter)
        return this.settle()

    def ready(self, end: int) -> list[CallOutcome]:
        """Handle the report that the wire of this end has something to read, or room."""
        return self._ends[end].settle()

    def end_closed(self, end: int, names_of_last_holders: str) -> list[CallOutcome]:
        """Handle the report that no process holds this end any more.

        Args:
            end: 0 or 1.
            names_of_last_holders: for messages; "" if no process ever held it.
        """
        this, other = self._ends[end], self._ends[1 - end]
        other.held_by = f", which was last held by {names_of_last_holders}" if names_of_last_holders else ""
        outcomes = this.close()
        return outcomes + other.settle()

    def give_up(self, waiter: Waiter, timed_out: bool) -> list[CallOutcome]:
        """End a call that still waits, or take back the message lent to it."""
        return [outcome for end in self._ends for outcome in end.give_up(waiter, timed_out)]

    def taken(self, waiter: Waiter) -> list[CallOutcome]:
        """Forget the message lent to this call: it has arrived. After the last message, other calls now get the end."""
        return [outcome for end in self._ends for outcome in end.taken(waiter)]

    def party_gone(self, process: str, name: str) -> list[CallOutcome]:
        """Forget the calls of this process, and pass on the messages lent to it."""
        return [outcome for end in self._ends for outcome in end.party_gone(process)]


class _End:
    """One end: the waiting calls of processes on other hosts, and messages lent to one of them that came back."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.held_by = ""
        """The last holders of the other end, once it has none, as the end of a sentence."""
        self.senders: deque[tuple[Waiter, SizedItem]] = deque()
        self.readers: deque[Waiter] = deque()
        self.pollers: list[Waiter] = []
        self._line = LeasedQueue()
        self._closed = False

    def settle(self) -> list[CallOutcome]:
        """Serve readers, let senders go on, and report the end to all that wait for what cannot come any more."""
        if self._closed:
            return []
        outcomes: list[CallOutcome] = []
        while self.readers and (outcome := self._read(self.readers[0])):
            self.readers.popleft()
            outcomes.append(outcome)
        while self.senders and (outcome := self._write(*self.senders[0])):
            self.senders.popleft()
            outcomes.append(outcome)
        if self.pollers and (self._line or self.wire.is_readable()):
            outcomes[:0] = [CallOutcome(waiter, True) for waiter in self.pollers]
            self.pollers.clear()
        # A lent message may still come back, and then goes to another reader: there is nothing else to watch for.
        self.wire.watch(bool(self.readers or self.pollers) and not self.wire.at_end, bool(self.senders))
        return outcomes

    def _read(self, waiter: Waiter) -> CallOutcome | None:
        if not self._line:
            try:
                item = self.wire.receive()
            except OSError as error:  # there is no descriptor left for it
                return CallOutcome(waiter, error=error)
            if item is not None:
                self._line.append(item)
            elif self.wire.at_end and not self._line.num_lent:
                return CallOutcome(waiter, error=EOFError(f"nobody holds the other end of this pipe{self.held_by}"))
            else:
                return None
        return self._line.lend(waiter)

    def _write(self, waiter: Waiter, item: SizedItem) -> CallOutcome | None:
        try:
            return CallOutcome(waiter) if self.wire.send(item) else None
        except BrokenPipeError:
            problem = f"nobody holds the other end of this pipe{self.held_by}"
            return CallOutcome(waiter, error=BrokenPipeError(errno.EPIPE, problem))
        except OSError as error:  # there is no memory for it
            return CallOutcome(waiter, error=error)

    def close(self) -> list[CallOutcome]:
        waiters = [*self.readers, *self.pollers, *(waiter for waiter, _ in self.senders)]
        self._forget(set(waiters))
        self._line.clear()
        self._closed = True
        self.wire.close()
        return [CallOutcome(waiter, error=OSError("handle is closed")) for waiter in waiters]

    def give_up(self, waiter: Waiter, timed_out: bool) -> list[CallOutcome]:
        if self._line.give_back(waiter):
            return self.settle()
        if waiter in self.pollers:
            self.pollers.remove(waiter)
            return ([CallOutcome(waiter, False)] if timed_out else []) + self.settle()
        waits = waiter in self.readers or any(sender is waiter for sender, _ in self.senders)
        if not waits:
            return []
        self._forget({waiter})
        timeout = TimeoutError("the time for this message of a pipe is over")
        # A sender that leaves may have made smaller messages wait.
        return ([CallOutcome(waiter, error=timeout)] if timed_out else []) + self.settle()

    def taken(self, waiter: Waiter) -> list[CallOutcome]:
        if not self._line.num_lent:
            return []
        self._line.taken(waiter)
        return self.settle()

    def party_gone(self, process: str) -> list[CallOutcome]:
        waiters = {*self.readers, *self.pollers, *(waiter for waiter, _ in self.senders)}
        gone = {waiter for waiter in waiters if waiter.party.process == process}
        if not gone and not self._line.num_lent:
            return []
        self._forget(gone)
        self._line.give_back_all_of(process)
        return self.settle()

    def _forget(self, waiters: set[Waiter]) -> None:
        self.senders = deque(entry for entry in self.senders if entry[0] not in waiters)
        self.readers = deque(waiter for waiter in self.readers if waiter not in waiters)
        self.pollers = [waiter for waiter in self.pollers if waiter not in waiters]
