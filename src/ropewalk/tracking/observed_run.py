"""`track=` of a program, a trainer or a population: what they print about themselves, written as a run.

observed(track, "population", ...) ─▶ ObservedRun ─▶ Run of its own, or that which the process writes already
    row of the table ─▶ metrics of the group "table"      death, plan ─▶ events      checkpoint ─▶ CheckpointKept
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ropewalk.argument_kinds import check_kind
from ropewalk.control.view import Observable
from ropewalk.supervision.failure import DeathRecord
from ropewalk.tracking.interruptions import PAUSE, STOP, RunPaused, RunStopped, outcome_of
from ropewalk.tracking.records import TABLE, CheckpointKept, EventHappened

if TYPE_CHECKING:
    from ropewalk.tracking.run import Run

_own: weakref.WeakSet[Run] = weakref.WeakSet()
"""Runs that were begun here, in which nothing else is written."""


class ObservedRun:
    """Writes what something reports about itself. Without a run, every method does nothing. All are thread-safe.

    Args:
        run: the run; None: nothing is written.
        given: the text by which processes are given the run; see `ProcessSpec.run`.
        owns: whether the run ends with what it observes.
    """

    def __init__(self, run: Run | None, given: str = "", *, owns: bool = False) -> None:
        self.run: Run | None = run
        self.given: str = given
        self.asked: str = ""
        """What was asked of the run: "pause", "stop", or "" for nothing."""
        self.part: Observable | None = None
        """What writes here as a part of something else, and is shown by that: set by the part when it begins."""
        self.when_asked: Callable[[], object] | None = None
        """Called in the thread of a writer when something is asked; None: it is found in `asked`."""
        self._owns = owns
        self._ending = threading.Lock()

    def row(self, values: Mapping[str, object], step: float, group: str = TABLE) -> None:
        """Write the numbers of a row; other columns are left out."""
        if self.run is not None:
            numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
            self.run.log(numbers, step=step, group=group)

    def event(self, kind: str, text: str, **data: Any) -> None:
        """Write what belongs on the time line, such as a death with its cause."""
        if self.run is not None:
            self.run.put(EventHappened(kind, text, time.time(), data))

    def death(self, text: str, record: DeathRecord) -> None:
        """Write that a process has died."""
        if self.run is not None:
            self.run.put(EventHappened.of_death(text, record))

    def checkpoint(self, step: float, path: Path, score: float | None = None) -> None:
        """Write that a checkpoint is complete."""
        if self.run is not None:
            self.run.put(CheckpointKept(step, str(path.absolute()), _size_bytes(path), time.time(), score))

    def resumed_from(self, step: float) -> None:
        """Write from which step the work goes on."""
        if self.run is not None:
            self.run.resumed_from(step)

    def ask(self, action: str) -> None:
        """Take a request, for what is observed to find."""
        self.asked = action
        if self.when_asked:
            self.when_asked()

    def interrupt(self, step: float, *, is_saved: bool) -> None:
        """End what is observed, at a place where it may end, if that was asked for.

        Args:
            step: the step that is complete.
            is_saved: whether a checkpoint of it is complete, without which it cannot pause.

        Raises:
            RunStopped: it was asked to stop.
            RunPaused: it was asked to pause, and there is a checkpoint.
        """
        if self.asked == STOP:
            raise RunStopped(f"stopped by request after step {step:g}", step)
        if self.asked == PAUSE and is_saved:
            raise RunPaused(f"paused at step {step:g}", step, step)

    def __enter__(self) -> ObservedRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end(error)

    def end(self, error: BaseException | None = None) -> None:
        """End the run, if it is its own: failed with an error, paused or stopped with an interruption, else done."""
        self.end_as(*outcome_of(error))

    def end_as(self, state: str, why: str = "") -> None:
        """End the run, if it is its own. May be called twice."""
        with self._ending:
            run, self.run = self.run, None
        if run is not None and self._owns:
            run.finish(state, why)


UNOBSERVED = ObservedRun(None)
"""Writes nothing."""
Track = bool | str | ObservedRun
"""The argument `track=`: True, the name of a project, or what writes a run already, for a part of what it observes."""


def observed(
    track: Track,
    kind: str,
    name: str,
    config: Mapping[str, Any],
    *,
    seed: int | None = None,
    take: Callable[[ObservedRun, str], tuple[bool, str]] | None = None,
) -> ObservedRun:
    """Begin to write a run.

    If this process writes one already that it did not begin here, such as that of `rw.track` or of a trial, everything
    goes there. Else a run of its own begins.

    Args:
        track: False: nothing is written; True, or the project; or what writes a run, which gets everything too.
        kind: as in `RunCreated`.
        name: what the run is of; part of its name.
        config: its settings.
        seed: its seed.
        take: is asked about a request to pause or to stop, in a thread of the writer, and may set `asked`; returns
            whether that can be done, and the answer. None: neither can be done.

    Raises:
        StoreError: the store cannot be opened.
        ModuleNotFoundError: a package that stores need is not installed.
    """
    check_kind("track", track, Track, "True, or the name of a project")
    if not track:
        return UNOBSERVED
    if isinstance(track, ObservedRun):
        return ObservedRun(track.run, track.given)
    # Here, because these import SQLAlchemy, which nothing needs that is not tracked.
    from ropewalk.tracking.beginning import begin_run
    from ropewalk.tracking.current import current_run
    from ropewalk.tracking.given_runs import given_text

    current = current_run()
    if current is not None and current not in _own:
        return ObservedRun(current, given_text(current))
    result = ObservedRun(None, owns=True)

    def asked(action: str) -> tuple[bool, str]:
        return take(result, action) if take else (False, f"a {kind} cannot {action}; to end it: ropewalk runs kill")

    project = track if isinstance(track, str) else None
    result.run = begin_run(kind, project, config, name=f"{name}-{os.urandom(3).hex()}", seed=seed, take=asked)
    result.given = given_text(result.run)
    _own.add(result.run)
    return result


def _size_bytes(path: Path) -> int:
    try:
        files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
        return sum(file.stat().st_size for file in files)
    except OSError:  # another process removes it, or it is on another host
        return 0
