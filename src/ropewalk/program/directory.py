"""The directory of services: the launcher's table, and the view that a host has of it.

    supervisor, hosts ──▶ Table ──changes──▶ hosts that asked for the name ──▶ DirectoryView ──▶ clients

The table is pure: states and addresses in, `Placed` messages out. A view keeps the locations that it was told and wakes
threads that wait for news.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from ropewalk.calls import call_context
from ropewalk.calls.directory import ReplicaLocation
from ropewalk.errors import DeadlineExceeded, ServiceLost
from ropewalk.processes.interrupts import interrupts_deferred
from ropewalk.processes.notifier import Notifier
from ropewalk.program.instructions import ReplicaState
from ropewalk.program.messages import Placed, Sizes

logger = logging.getLogger(__name__)

_SILENT_S = 30.0
"""Seconds without the first answer of the launcher after which a process that waits for it reports that."""
_STATES = {
    ReplicaState.WAITING: "waiting",
    ReplicaState.STARTING: "waiting",
    ReplicaState.READY: "waiting",  # until its address is known
    ReplicaState.ENDING: "waiting",
    ReplicaState.COMPLETED: "completed",
    ReplicaState.FAILED: "failed",
    ReplicaState.STOPPED: "stopped",
}


class Table:
    """All services of a program, as the launcher knows them."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self._sizes = dict(sizes)
        self._places: dict[tuple[str, int], Placed] = {}
        self._up: dict[tuple[str, int], tuple[int, str, int]] = {}

    def came_up(self, name: str, replica: int, generation: int, address: str, target: int) -> None:
        """A replica can be called at an address."""
        self._up[name, replica] = generation, address, target

    def update(
        self,
        states: Iterable[tuple[str, int, ReplicaState, int, str]],
        sizes: Mapping[str, int],
        *,
        stopping: str,
    ) -> list[Placed | Sizes]:
        """Update the table, and return the changes.

        Args:
            states: of replicas of services that may have changed or came up: name, index, state, generation, cause of
                the last failure. There may be thousands of others.
            sizes: number of replicas of each node.
            stopping: why the program ends; empty while it runs.
        """
        news: list[Placed | Sizes] = []
        for name, replica, state, generation, cause in states:
            if state is ReplicaState.REMOVED:
                news += self._removed(name, replica)
                continue
            placed = self._placed(name, replica, state, generation, cause, stopping)
            if self._places.get((name, replica)) != placed:
                self._places[name, replica] = placed
                news.append(placed)
        for name, size in sizes.items():
            if self._sizes.get(name) != size:
                self._sizes[name] = size
                news.append(Sizes(name, size))
        return news

    def about(self, name: str) -> list[Placed | Sizes]:
        """All that is known of a service, its locations first."""
        size = self._sizes.get(name, 0)
        known = [self._places[name, replica] for replica in range(size) if (name, replica) in self._places]
        return [*known, Sizes(name, size)]

    def _removed(self, name: str, replica: int) -> Iterator[Placed]:
        self._up.pop((name, replica), None)
        last = self._places.pop((name, replica), None)
        if last:  # clients that still call it must not go on looking for it
            yield Placed(name, replica, "failed", "", 0, "", last.generation, "it was scaled away")

    def _placed(
        self, name: str, replica: int, state: ReplicaState, generation: int, cause: str, stopping: str
    ) -> Placed:
        up_generation, address, target = self._up.get((name, replica), (-1, "", 0))
        if up_generation == generation and state in (ReplicaState.STARTING, ReplicaState.READY, ReplicaState.ENDING):
            # A replica that is being ended answers the calls that it can, and itself reports when it refuses more.
            # A caller that noticed the end of the process before it late asks why when this one is up.
            return Placed(name, replica, "up", address, target, "", generation, cause)
        if stopping and state not in (ReplicaState.FAILED, ReplicaState.COMPLETED):
            return Placed(name, replica, "stopped", "", 0, "", generation, cause or stopping)
        return Placed(name, replica, _STATES[state], "", 0, "", generation, cause)


class DirectoryView:
    """One process's view of the table; a `calls.directory.Directory`."""

    def __init__(self, ask: Callable[[str], None], before_waiting: Callable[[], None]) -> None:
        """`ask` asks the launcher for a name; `before_waiting` is called by a thread that is about to wait."""
        self._ask = ask
        self._before_waiting = before_waiting
        self._news = Notifier()
        self._places: dict[tuple[str, int], ReplicaLocation] = {}
        self._sizes: dict[str, int] = {}
        self._asked: set[str] = set()
        self._asking = threading.Lock()
        self._ended = ""
        self._pid = os.getpid()

    # Updates by the launcher

    def hear(self, message: Placed | Sizes) -> str:
        """Apply an update; return the address of a process that is gone according to it, or an empty string."""
        gone = ""
        if isinstance(message, Sizes):
            self._sizes[message.name] = message.replicas
        else:
            known = self._places.get((message.name, message.replica))
            gone = known.address if known and known.address != message.address else ""
            self._places[message.name, message.replica] = ReplicaLocation(
                message.state,
                message.address,
                message.target,
                message.token,
                message.generation,
                message.cause,
            )
        self._news.ring()
        return gone

    def end(self, why: str) -> None:
        """End the view: no updates will come, and all services count as stopped."""
        self._ended = why
        self._news.ring()

    # Queries of clients

    def find(self, name: str, replica: int) -> ReplicaLocation:
        """The location of a replica; waits for the first answer of the launcher."""
        place = self._places.get((name, replica))
        if place is not None and not self._ended:
            return place
        # Sizes may be known without locations: in threads mode, one unit receives the answers that another one asked
        # for.
        self._wait_until(name, lambda: replica >= self._sizes.get(name, replica + 1) or (name, replica) in self._places)
        if self._ended:
            return ReplicaLocation("stopped", cause=self._ended)
        place = self._places.get((name, replica))
        return place or ReplicaLocation("failed", cause=f"{name} has {self._sizes.get(name, 0)} replicas")

    def replicas(self, name: str) -> int:
        """The number of replicas of a service; waits for the first answer of the launcher."""
        size = self._sizes.get(name)
        if size is None:
            self._wait_until(name, lambda: name in self._sizes)
            size = self._sizes.get(name, 0)
        return size

    def wait_for_news(self, name: str, replica: int, seen: ReplicaLocation, timeout_s: float) -> ReplicaLocation:
        """Wait until a location differs from `seen`, at most `timeout_s` seconds; return the current one."""
        self._before_waiting()
        self._news.wait_until(lambda: self._ended or self._places.get((name, replica), seen) != seen, timeout_s)
        return ReplicaLocation("stopped", cause=self._ended) if self._ended else self._places.get((name, replica), seen)

    def _wait_until(self, name: str, known: Callable[[], bool]) -> None:
        """Wait for the first answer about a service, until the deadline of the running code or the end of the view.

        There is no other limit. The end of the launcher ends this view or this process, so a launcher that does not
        answer is stopped (Ctrl-Z, a debugger, the lid of a laptop) or busy, and answers when it goes on. Nor does the
        time count for which this process was stopped itself.

        Raises:
            DeadlineExceeded: the deadline of the running code passed.
            ServiceLost: this process was forked from the one that the launcher answers.
        """
        if self._pid != os.getpid() and not self._ended:
            raise ServiceLost(
                f"the launcher does not tell a forked process where {name} is; call {name} in process {self._pid}, "
                f"from which this one ({os.getpid()}) was forked",
                service=name,
            )
        self._before_waiting()
        with interrupts_deferred, self._asking:
            if name not in self._asked:
                self._asked.add(name)
                self._ask(name)
        running = call_context.current.get()
        due = float("inf") if running is None or running.deadline is None else running.deadline
        began, is_told = time.monotonic(), False
        while not self._news.wait_until(lambda: known() or self._ended, min(due - time.monotonic(), _SILENT_S)):
            silent = f"the launcher has not said for {time.monotonic() - began:.0f} s where {name} is"
            if time.monotonic() >= due:
                raise DeadlineExceeded(
                    f"{silent}, and the deadline has passed; is it stopped, or very busy?", call=name
                )
            if not is_told:
                is_told = True
                logger.warning("%s: it is stopped, or very busy; this process waits until it goes on", silent)
            self._before_waiting()
