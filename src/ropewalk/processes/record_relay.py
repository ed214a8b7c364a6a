"""The records of runs that processes of a session write, from agents to those that listen in this process.

agent ──Records──▶ RecordRelay ──RecordBatch──▶ the first listener that takes it ──seen()──▶ agent
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from ropewalk.errors import LinkClosed
from ropewalk.processes.agent_record import AgentRecord
from ropewalk.processes.managed_process import ManagedProcess
from ropewalk.processes.messages import Records, RecordsSeen
from ropewalk.processes.owner import Owner, ProcessSpec

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecordBatch:
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
    data: bytes
    is_last: bool
    """Whether the source has ended, so that nothing follows."""
    seen: Callable[[], None] = field(repr=False)
    """To be called once, from any thread, when the data is handled: the agent holds back more than 1 MiB that is not.
    """


Handler = Callable[[RecordBatch], bool]
"""Called on the loop's thread with each batch, before the end of its process is reported; it must not wait. Returns
whether it takes the batch; if it does, it calls `seen`."""


class RecordRelay:
    """Passes the records of processes on to listeners."""

    def __init__(self) -> None:
        self._handlers: tuple[Handler, ...] = ()
        self._warned = False

    @property
    def has_listeners(self) -> bool:
        """Whether anyone listens: processes that are started while nobody does write to the launcher."""
        return bool(self._handlers)

    def listen(self, handler: Handler) -> Callable[[], None]:
        """Have a handler asked about each batch; from any thread, before the processes are started.

        Returns:
            A function that ends this.
        """
        self._handlers = (*self._handlers, handler)

        def stop() -> None:
            self._handlers = tuple(each for each in self._handlers if each is not handler)

        return stop

    def take(self, agent: AgentRecord, records: Records, process: ManagedProcess | None) -> None:
        """Give records of a process to the listener that takes them; None: the process is not known here."""

        def seen() -> None:
            if agent.link and records.data:
                with contextlib.suppress(LinkClosed):
                    agent.link.send(RecordsSeen(len(records.data)))

        batch = RecordBatch(
            process=records.id,
            source=records.source,
            host=agent.host,
            pid=process.pid if process else 0,
            owner=process.owner if process else None,
            spec=process.spec if process else None,
            data=records.data,
            is_last=records.is_last,
            seen=seen,
        )
        if any(self._takes(handler, batch) for handler in self._handlers):
            return
        seen()
        if not self._warned and records.data:
            self._warned = True
            logger.warning("%s on %s wrote records of a run that nobody here keeps", records.id, agent.label)

    def _takes(self, handler: Handler, batch: RecordBatch) -> bool:
        try:
            return handler(batch)
        except Exception:  # the loop and the other listeners go on
            logger.exception("records of %s could not be handled", batch.process)
            return False
