"""`ExchangeTimeline`: a trace of an exchange for ui.perfetto.dev or chrome://tracing (Horovod's timeline).

    process   one for each rank
    thread 0  the step: from its beginning to its end, the wait in it, and a mark where each gradient became ready
    threads   one for each bucket: queue, encode, negotiate, transfer, decode

Each rank writes a file of its own, `trace.rank0.json`. A member whose rank changes, because others are gone, goes on
in `trace.rank0.epoch3.json`: the member that had the rank before wrote the other one. Times are of the wall clock, so
files of one host can be merged as they are (`merge_timelines`). Without a timeline an exchange calls nothing here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from ropewalk import trace_events
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.exchange import StepRecord
from ropewalk.exchange.groups.group import Group
from ropewalk.exchange.observers import WHOLE_STEP, Observer
from ropewalk.trace_events import Event

logger = logging.getLogger(__name__)

_END = b"\n]\n"

_FLUSH_EVERY = 1000
"""Number of events that are kept in memory before they are written."""


class ExchangeTimeline(Observer):
    """Writes a trace of an exchange while it runs; if writing fails the trace ends, and training continues.

    Args:
        path: path of the trace, such as "trace.json"; the rank is inserted before the suffix, and the epoch in which
            this member got the rank, unless it is 0.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._rank = self._epoch = 0
        self._step = -1
        self._began = 0.0
        self._sizes: dict[Path, int] = {}
        """Bytes of the events of each file, without its end."""
        self._is_bound = self._closed = self._failed = False
        # Phases are timed by `perf_counter`, whose zero differs between processes.
        self._zero_s = time.time() - time.perf_counter()

    def __repr__(self) -> str:
        return f"<ExchangeTimeline {str(self.path)!r}>"

    @property
    def path(self) -> Path:
        """The trace file of this member since it got its rank."""
        epoch = f".epoch{self._epoch}" if self._epoch else ""
        return self._path.with_suffix(f".rank{self._rank}{epoch}{self._path.suffix or '.json'}")

    def bind(self, layouts: Sequence[Layout], group: Group) -> None:
        if self._rank != group.rank or not self._is_bound:
            self._flush()  # earlier events belong to the earlier rank
            self._rank, self._epoch = group.rank, group.epoch
        self._is_bound, self._closed = True, self._failed
        self._add(trace_events.process_name(self._rank, f"rank {group.rank} of {group.size}"))
        for bucket, layout in enumerate(layouts):
            names = layout.names
            what = names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]} ({len(names)})"
            self._add(trace_events.thread_name(self._rank, bucket + 1, f"bucket {bucket}: {what}"))

    def begin(self, record: StepRecord) -> None:
        self._step, self._began = record.step, time.perf_counter()

    def ready(self, name: str) -> None:
        self._add(trace_events.mark(self._rank, 0, name, self._wall_s(time.perf_counter())))

    def phase(self, name: str, bucket: int, began: float, ended: float) -> None:
        tid = 0 if bucket == WHOLE_STEP else bucket + 1
        self._span(tid, name, began, ended, {"step": self._step})

    def sent(self, bucket: int, mode: str, num_values: int) -> None:
        now = self._wall_s(time.perf_counter())
        self._add(trace_events.mark(self._rank, bucket + 1, mode, now, facts={"values": num_values}))

    def ended(self, step: int) -> None:
        self._span(0, f"step {step}", self._began, time.perf_counter())

    def failed(self, error: BaseException) -> None:
        about = {"error": f"{type(error).__name__}: {error}"}
        self._span(0, f"step {self._step} failed", self._began, time.perf_counter(), about)
        self._flush()  # a user who debugs a failure may never call close

    def close(self) -> None:
        """Write the remaining events; may be called twice. A later `bind` goes on with the trace."""
        self._flush()
        self._closed = True

    def _wall_s(self, moment: float) -> float:
        return self._zero_s + moment

    def _span(
        self, thread: int, name: str, began: float, ended: float, facts: Mapping[str, object] | None = None
    ) -> None:
        self._add(
            trace_events.complete(self._rank, thread, name, self._wall_s(began), self._wall_s(ended), facts=facts)
        )

    def _add(self, event: Event) -> None:
        with self._lock:
            if not self._closed:
                self._events.append(event)
            full = len(self._events) >= _FLUSH_EVERY
        if full:
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            if self._events and not self._failed:
                lines = b",\n".join(msgspec.json.encode(event) for event in self._events)
                self._events.clear()
                self._write(lines)

    def _write(self, lines: bytes) -> None:
        """Append to the file, which is complete after each time."""
        path = self.path
        before = self._sizes.get(path, 0)
        data = (b",\n" if before else b"[\n") + lines
        try:
            with path.open("r+b" if before else "wb") as file:
                file.seek(before)
                file.write(data + _END)
        except OSError as error:
            logger.warning("the trace %s ends here, because it cannot be written: %s", path, error)
            self._failed = self._closed = True
        else:
            self._sizes[path] = before + len(data)


def merge_timelines(paths: Iterable[str | Path], merged: str | Path) -> None:
    """Merge the traces of several ranks into one file.

    Args:
        paths: the files that the ranks wrote; the file of a killed process is read as far as it goes.
        merged: the file to write; an existing one is replaced.
    """
    events = [event for path in paths for event in read_timeline(path)]
    Path(merged).write_bytes(trace_events.trace(events))


def read_timeline(path: str | Path) -> list[Event]:
    """Return the events of one trace, complete or cut short by the death of its process.

    Args:
        path: the file that a rank wrote.
    """
    lines = Path(path).read_bytes().removeprefix(b"[").removesuffix(b"]\n").strip().split(b",\n")
    events: list[Event] = []
    for line in lines:
        try:
            events.append(msgspec.json.decode(line))
        except msgspec.DecodeError:
            break  # only the last line can be cut short
    return events
