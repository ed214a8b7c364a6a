"""`WaitingLines`: the calls that wait at the limiters of tables, in order of arrival. Pure.

    line "insert", table t:   first ─▶ second ─▶ third          only the first may go
    line "sample", table t:   first ─▶ second

A call that concerns several tables joins all of their lines at once, so the order is the same in all lines, and no two
calls wait for each other.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ropewalk.rl.replay.insertion import Insertion

Side: TypeAlias = Literal["insert", "sample"]


@dataclass(slots=True, eq=False)
class LimiterWait:
    """One call that waits.

    Attributes:
        side: whether it inserts or samples.
        tables: names of the tables whose lines it is in.
        since: monotonic time in seconds at which it began to wait.
        woken: is notified when the call can go; over the server's lock.
        ready: whether its limiters let it go.
        insertion: what it inserts; None if it samples.
        error: is raised in the call.
    """

    side: Side
    tables: tuple[str, ...]
    since: float
    woken: threading.Condition
    ready: Callable[[], object]
    insertion: Insertion | None = None
    error: Exception | None = None


class WaitingLines:
    """Two lines for each table."""

    def __init__(self, tables: Iterable[str]) -> None:
        self._lines: dict[tuple[Side, str], deque[LimiterWait]] = {}
        for table in tables:
            self._lines["insert", table] = deque()
            self._lines["sample", table] = deque()

    def join(self, wait: LimiterWait) -> None:
        """Let a call wait after all that wait already."""
        for table in wait.tables:
            self._lines[wait.side, table].append(wait)

    def leave(self, wait: LimiterWait) -> None:
        """A call goes, or gives up."""
        for table in wait.tables:
            self._lines[wait.side, table].remove(wait)

    def is_first(self, wait: LimiterWait) -> bool:
        """Whether no call that came earlier waits for one of its tables."""
        return all(self._lines[wait.side, table][0] is wait for table in wait.tables)

    def are_empty(self, side: Side, tables: Iterable[str]) -> bool:
        """Whether no call waits at that side of these tables."""
        return not any(self._lines[side, table] for table in tables)

    def firsts(self) -> Iterator[LimiterWait]:
        """The calls that may be able to go when something has changed; one may be given twice."""
        return (line[0] for line in self._lines.values() if line)

    def all_of(self, side: Side) -> list[LimiterWait]:
        """All calls that wait at one side of any table."""
        return list(dict.fromkeys(wait for (of, _), line in self._lines.items() if of == side for wait in line))


__all__ = ["LimiterWait", "Side", "WaitingLines"]
