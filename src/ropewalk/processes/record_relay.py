"""The records of runs that processes of a session write, from agents to those that listen in this process.

agent ──Records──▶ RecordRelay ──RecordBatch──▶ the first listener that takes it ──seen()──▶ agent
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable

import msgspec

from ropewalk.errors import LinkClosed
from ropewalk.processes.agent_record import AgentRecord
from ropewalk.processes.listeners import Listeners
from ropewalk.processes.managed_process import ManagedProcess
from ropewalk.processes.messages import FlushRecords, Records, RecordsSeen
from ropewalk.processes.owner import Owner, ProcessSpec

logger = logging.getLogger(__name__)

_LOOK_S = 0.002
"""Seconds between looks for the answers of agents; they come within a round trip."""


class RecordBatch(msgspec.Struct, frozen=True):
    """Bytes that a process has written to its record pipe; they may end in the middle of a record."""

    process: str
    """Id of a process of this session: the one that wrote, or the one whose session started that one."""
    source: str
    """Id of the process that wrote: the bytes of one source are one stream."""
    host: str
    pid: int
    """Of `process`, on its host."""
    owner: Owner | None
    """The owner of `process`; None if it is not known here."""
    spec: ProcessSpec | None
    run: str
    """The run that `process` was given; see `ProcessSpec.run`. Empty if it was given none, or is not known here."""
    data: bytes
    is_last: bool
    """Whether the source has ended, so that nothing follows."""
    seen: Callable[[], None]
    """To be called once, from any thread, when the data is handled: the agent holds back more than 1 MiB that is not.
    """


Handler = Callable[[RecordBatch], bool]
"""Called on the loop's thread with each batch, before the end of its process is reported; it must not wait. Returns
whether it takes the batch; if it does, it calls `seen`."""


_everywhere: Listeners[Handler] = Listeners()


def listen_everywhere(handler: Handler) -> Callable[[], None]:
    """Have a handler asked about each batch in all sessions of this process, also in those that open later.

    Returns:
        A function that ends this.
    """
    return _everywhere.add(handler)


class RecordRelay:
    """Passes the records of processes on to listeners.

    Args:
        agents: returns the agents of the session.
    """

    def __init__(self, agents: Callable[[], Iterable[AgentRecord]] = list) -> None:
        self._agents = agents
        self._here: Listeners[Handler] = Listeners()
        self._numbers = itertools.count(1)
        self._unflushed: dict[int, set[AgentRecord]] = {}
        """Agents that have not answered yet, by the number of a request."""
        self._warned = False

    @property
    def has_listeners(self) -> bool:
        """Whether anyone listens: processes that are started while nobody does write to the launcher."""
        return bool(self._here) or bool(_everywhere)

    def listen(self, handler: Handler) -> Callable[[], None]:
        """Have a handler asked about each batch; from any thread, before the processes are started.

        Returns:
            A function that ends this.
        """
        return self._here.add(handler)

    def settle(self, timeout_s: float) -> bool:
        """Wait until all that processes have written so far was handled; from any thread but the loop's.

        Args:
            timeout_s: seconds.

        Returns:
            Whether it was; False also if no answer came in time.
        """
        number, deadline = next(self._numbers), time.monotonic() + timeout_s
        waiting = {agent: agent.link for agent in self._agents() if agent.link}
        self._unflushed[number] = unflushed = set(waiting)
        for agent, link in waiting.items():
            try:
                link.send(FlushRecords(number))
            except LinkClosed:
                unflushed.discard(agent)
        while any(agent.link is waiting[agent] for agent in list(unflushed)) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        del self._unflushed[number]
        return not unflushed

    def flushed(self, agent: AgentRecord, number: int) -> None:
        """Note that an agent has sent all records from before a request."""
        if number in self._unflushed:
            self._unflushed[number].discard(agent)

    def take(self, agent: AgentRecord, records: Records, process: ManagedProcess | None) -> None:
        """Give records of a process to the listener that takes them; None: the process is not known here."""

        def seen() -> None:
            if agent.link and records.data:
                agent.link.send_if_open(RecordsSeen(len(records.data)))

        batch = RecordBatch(
            process=records.id,
            source=records.source,
            host=agent.host,
            pid=process.pid if process else 0,
            owner=process.owner if process else None,
            spec=process.spec if process else None,
            run=process.run if process else "",
            data=records.data,
            is_last=records.is_last,
            seen=seen,
        )
        if any(self._takes(handler, batch) for handler in (*self._here, *_everywhere)):
            return
        seen()
        if not self._warned and records.data:
            self._warned = True
            logger.warning("%s on %s wrote records of a run that is not kept here", records.id, agent.label)

    def _takes(self, handler: Handler, batch: RecordBatch) -> bool:
        try:
            return handler(batch)
        except Exception:  # the loop and the other listeners go on
            logger.exception("records of %s could not be handled", batch.process)
            return False
