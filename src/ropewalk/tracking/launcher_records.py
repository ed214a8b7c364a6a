"""Records that come from processes, in their launcher: decoded, checked, and put into a sink.

RecordRelay ──RecordBatch──▶ LauncherRecords ──▶ RecordSink (StoreWriter)

A process may write to the runs that it was given and to no others, and it cannot create runs: the folder of a run,
which is deleted with the run, is named by the launcher alone. Bytes that are no records end the stream of their
process, with one message.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Collection

import msgspec

from ropewalk.escaping import escaped
from ropewalk.processes.record_relay import Handler, RecordBatch
from ropewalk.tracking.record_decoder import RecordDecoder
from ropewalk.tracking.record_frames import RecordStream
from ropewalk.tracking.records import Metrics, OwnerIs, Record, RecordSink, RunCreated

logger = logging.getLogger(__name__)

_AHEAD_BYTES = 256 * 1024
"""After this many bytes, processes get more room only when the sink can lose nothing of what it has."""
_SETTLE_S = 1.0
"""A sink that cannot store anything, as on a full disk, delays processes by this (seconds) and keeps its own bound."""

RunsOf = Callable[[RecordBatch], Collection[str] | None]
"""Returns the ids of the runs to which the process of a batch may write; None if the process belongs to others."""


class LauncherRecords:
    """Puts the records of processes into a sink, in order, before the ends of the processes are reported.

    Args:
        listen: registers the handler: `session.records.listen`, or `listen_everywhere` for all sessions.
        sink: gets them, on the loop's thread of the session.
        runs_of: tells which runs a process was given; called on that thread.
        tell: is told once about each process whose records are refused.
    """

    def __init__(
        self,
        listen: Callable[[Handler], Callable[[], None]],
        sink: RecordSink,
        runs_of: RunsOf,
        tell: Callable[[str], object] = logger.warning,
    ) -> None:
        self._sink = sink
        self._runs_of = runs_of
        self._tell = tell
        self._decode = RecordDecoder().decode
        self._streams: dict[tuple[str, str], RecordStream | None] = {}
        """By process and source; None for one that is not read any more."""
        self._told: set[str] = set()
        self._ahead_bytes = 0
        self._unseen: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        """Runs once there is much to store."""
        self._stop = listen(self._take)

    def close(self) -> None:
        """Take nothing more; what was taken is in the sink. May be called twice, but not from the loop."""
        self._stop()
        self._unseen.put(None)
        if self._thread:
            self._thread.join()

    def _take(self, batch: RecordBatch) -> bool:
        runs = self._runs_of(batch)
        if runs is None:
            return False
        key = batch.process, batch.source
        stream = self._streams.setdefault(key, RecordStream())
        if stream:
            try:
                for data in stream.feed(batch.data):
                    self._put(batch, *self._decode(data), runs)
            except (ValueError, msgspec.DecodeError) as error:
                self._streams[key] = None
                self._refuse(batch, f"what is not a record ({error}); nothing more of it is kept")
        if batch.is_last:
            self._streams.pop(key, None)
            self._told.discard(batch.source)
        self._give_room(batch)
        return True

    def _put(self, batch: RecordBatch, run: str, record: Record, runs: Collection[str]) -> None:
        if run not in runs:
            self._refuse(batch, f"to the run {run[:80]!r}, which it was not given")
        elif isinstance(record, RunCreated | OwnerIs):
            self._refuse(batch, f"{type(record).__name__}, which only its launcher may")
        elif isinstance(record, Metrics) and not record.is_even:
            num = len(record.numbers) / (8 if isinstance(record.numbers, bytes) else 1)
            self._refuse(batch, f"{len(record.names)} names of metrics with {num:g} values")
        else:
            self._sink.put(run, record)

    def _refuse(self, batch: RecordBatch, what: str) -> None:
        if batch.source not in self._told:
            self._told.add(batch.source)
            self._tell(escaped(f"{batch.source} on {batch.host} wrote {what}; this was refused"))

    def _give_room(self, batch: RecordBatch) -> None:
        self._ahead_bytes += len(batch.data)
        if self._ahead_bytes > _AHEAD_BYTES and self._has_thread():
            self._unseen.put(batch.seen)
        else:
            batch.seen()

    def _has_thread(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._confirm, name="ropewalk-records", daemon=True)
            with contextlib.suppress(RuntimeError):  # the interpreter is ending
                thread.start()
                self._thread = thread
        return self._thread is not None

    def _confirm(self) -> None:
        """Wait, in a thread, until the sink can lose nothing of what it has, before processes may write more."""
        while True:
            calls = [self._unseen.get()]
            while not self._unseen.empty():
                calls.append(self._unseen.get())
            self._ahead_bytes = 0
            self._sink.settle(_SETTLE_S)
            for seen in calls:
                if seen is None:
                    return
                seen()
