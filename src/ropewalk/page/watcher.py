"""`Watcher`: looks once a second at what runs, while somebody looks at the page, and remembers what it saw.

page of a client ── want(panels) ──▶ Watcher ── thread: source.look(panels) once a second ──▶ Seen
                 ◀── seen(id) ──────    what does not answer or has ended keeps its last view, and says why
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import msgspec

from ropewalk.control.view import View

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
"""Seconds between two looks."""
_NUM_SAMPLES = 60
"""Samples that are kept: a small curve shows them all, and rates are those of the last seconds."""
_RATE_OVER_S = 5.0
_MOST_ROWS = 20_000
"""Rows of a panel with a cursor that are kept: the latest."""
_FORGET_S = 3600.0
"""Seconds for which what has ended is kept."""
_WANTED_S = 10.0
"""Seconds for which something is looked at unless it is wanted again: a tab that is not shown wants nothing."""


@dataclass(frozen=True, slots=True)
class LookResult:
    """What a look at one thing brought: a view, or the reason why there is none."""

    id: str
    view: View | None
    problem: str = ""


class Source(Protocol):
    """Where views come from."""

    def look(self, panels: Mapping[str, dict[str, int]]) -> list[LookResult]:
        """LookResult at everything that runs now.

        Args:
            panels: of each thing that somebody looks at closely, by id: names of panels with their cursors.
        """
        ...


@dataclass(frozen=True, slots=True)
class ViewSample:
    """Numbers of one view, for rates and small curves.

    Attributes:
        at: Unix time in seconds.
        facts: the numbers among the facts.
        processes: of each process: done, CPU seconds, memory in bytes.
    """

    at: float
    facts: dict[str, float]
    processes: dict[str, tuple[int, float, int]]


@dataclass(slots=True, eq=False)
class Seen:
    """What is known of one thing that runs or ran.

    Attributes:
        view: the last one, without panels.
        panels: the data of panels, with the rows of those that have a cursor put together.
        problem: why it could not be seen at the last look; "".
        gone: whether it was not found at the last look.
        seen_at: `time.monotonic()` of the last view.
        samples: of the last minute, the last one last. A thread adds to them: copy them before you go through them.
    """

    view: View
    panels: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    problem: str = ""
    gone: bool = False
    seen_at: float = 0.0
    samples: deque[ViewSample] = field(default_factory=lambda: deque[ViewSample](maxlen=_NUM_SAMPLES))

    @property
    def is_live(self) -> bool:
        """Whether it runs, and answers."""
        return not self.gone and not self.problem and not self.view.has_ended

    def recent(self) -> list[ViewSample]:
        """Return the samples of the last seconds, for rates: at least two, if there are since a clock was set."""
        samples = list(self.samples)
        first = len(samples) - 1
        while first > 0 and samples[first - 1].at < samples[first].at:
            if first < len(samples) - 1 and samples[first - 1].at < samples[-1].at - _RATE_OVER_S:
                break
            first -= 1
        return samples[max(0, first) :]

    def rate(self, process: str) -> float | None:
        """Return what a process completes in a second, over the last seconds; None before it is known."""
        return rate_of(process, self.recent())

    def cpu_share(self, process: str) -> float | None:
        """Return how many cores a process uses, over the last seconds; None before it is known."""
        return cores_of(process, self.recent())


def rate_of(process: str, recent: Sequence[ViewSample]) -> float | None:
    """Return what a process completes in a second, over the samples of `Seen.recent`; None if they do not say it."""
    return _per_s([(sample.at, sample.processes[process][0]) for sample in recent if process in sample.processes])


def cores_of(process: str, recent: Sequence[ViewSample]) -> float | None:
    """Return how many cores a process uses, over the samples of `Seen.recent`; None if they do not say it."""
    return _per_s([(sample.at, sample.processes[process][1]) for sample in recent if process in sample.processes])


def _per_s(counts: Sequence[tuple[float, float]]) -> float | None:
    """Return by how much a count grows in a second; one that fell is that of a process that was started again."""
    if len(counts) < 2:
        return None
    return max(0.0, counts[-1][1] - counts[0][1]) / (counts[-1][0] - counts[0][0])


class Watcher:
    """Looks at what runs, in a thread of its own, while anything is wanted.

    Args:
        source: where views come from.
        clock: seconds; for tests.
    """

    def __init__(self, source: Source, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, Seen] = {}
        self._problems: dict[str, str] = {}
        self._wanted: dict[str, tuple[float, dict[str, frozenset[str]]]] = {}
        """By client: until when it wants something, and the panels that it wants of each thing."""
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.num_looks: int = 0

    def want(self, client: str, id: str = "", panels: frozenset[str] = frozenset()) -> None:
        """Say that a client of the page is open and shown, and at what it looks closely; holds for ten seconds.

        Args:
            client: id of the client.
            id: of the thing whose panels it shows; "" for none.
            panels: their names.
        """
        with self._lock:
            self._wanted[client] = self._clock() + _WANTED_S, {id: panels} if id else {}
        self._wake.set()

    def unwant(self, client: str) -> None:
        """Say that a client is gone; without any, nothing is looked at."""
        with self._lock:
            self._wanted.pop(client, None)

    def problems(self) -> list[str]:
        """Return why things that were never seen could not be looked at."""
        with self._lock:
            return list(self._problems.values())

    def things(self) -> list[Seen]:
        """Return everything that was seen, in the order of its start; what runs first."""
        with self._lock:
            return sorted(self._seen.values(), key=lambda seen: (seen.gone, -seen.view.started, seen.view.id))

    def seen(self, id: str) -> Seen | None:
        """Return what is known of one thing."""
        with self._lock:
            return self._seen.get(id)

    def age_s(self, seen: Seen) -> float:
        """Return the seconds since a thing was seen."""
        return max(0.0, self._clock() - seen.seen_at)

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._run, name="ropewalk-watcher", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._ended.set()
        self._wake.set()
        if self._thread:
            self._thread.join(10.0)

    def look(self) -> None:
        """LookResult once."""
        looks = self._source.look(self._cursors())
        now = self._clock()
        with self._lock:
            self.num_looks += 1
            found = {look.id for look in looks}
            problems = {look.id: look.problem or self._problems.get(look.id, "") for look in looks if not look.view}
            self._problems = {id: problem for id, problem in problems.items() if problem and id not in self._seen}
            for look in looks:
                self._take(look, now)
            for id, seen in list(self._seen.items()):
                if id not in found:
                    seen.gone, seen.problem = True, ""
                    if now - seen.seen_at > _FORGET_S:
                        del self._seen[id]

    def is_wanted(self) -> bool:
        """Forget the clients that want nothing any more; returns whether others do."""
        with self._lock:
            now = self._clock()
            self._wanted = {client: one for client, one in self._wanted.items() if one[0] > now}
            return bool(self._wanted)

    def _cursors(self) -> dict[str, dict[str, int]]:
        with self._lock:
            wanted: dict[str, dict[str, int]] = {}
            for _, things in self._wanted.values():
                for id, panels in things.items():
                    known = self._seen[id].panels if id in self._seen else {}
                    mine = wanted.setdefault(id, {})
                    for name in panels:
                        mine[name] = int(known.get(name, {}).get("cursor", 0))
            return wanted

    def _take(self, look: LookResult, now: float) -> None:
        seen = self._seen.get(look.id)
        if look.view is None:
            if seen:
                # Without a reason, its answer is still awaited: what is known of it stays.
                seen.problem, seen.gone = look.problem or seen.problem, False
            return
        if seen is None:
            seen = self._seen[look.id] = Seen(look.view)
        for name, data in look.view.panels.items():
            seen.panels[name] = merged(seen.panels.get(name), data)
        seen.view = msgspec.structs.replace(look.view, panels={})
        seen.problem, seen.gone, seen.seen_at = "", False, now
        facts = {name: float(value) for name, value in look.view.facts.items() if isinstance(value, int | float)}
        processes = {one.name: (one.done, one.cpu_s, one.memory_bytes) for one in look.view.processes}
        seen.samples.append(ViewSample(look.view.at, facts, processes))

    def _run(self) -> None:
        while not self._ended.is_set():
            if not self.is_wanted():
                self._wake.wait()
                self._wake.clear()
                continue
            began = self._clock()
            try:
                self.look()
            except Exception:  # the page goes on with what it saw last; the log says why nothing is new
                logger.exception("nothing could be looked at")
            self._ended.wait(max(0.05, _LOOK_S - (self._clock() - began)))


def merged(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a panel after a look: with a cursor, new rows follow the old; the rest is replaced.

    The old data is returned itself if nothing is new, which tells who draws it that there is nothing to do.
    """
    whole = dict(new)
    if "cursor" in new and old is not None:
        for name, rows in new.items():
            before = old.get(name)
            if isinstance(rows, list) and isinstance(before, list):
                added = cast("list[Any]", rows)
                whole[name] = [*cast("list[Any]", before), *added][-_MOST_ROWS:] if added else before
    return old if isinstance(old, dict) and old == whole else whole
