"""`RunningExperiment`: an experiment, as other terminals and the page see it while it runs.

    this process, or a program ──▶ rows of ProgressLog ──▶ view(panels)
                     └─ once a second, while somebody looks: tables of replay, lags of blocks

An experiment that runs as a program is shown in place of it: its processes, events and panels are those of the program,
and its own besides them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ropewalk.control.announcing import announced
from ropewalk.control.loop_target import LoopTarget, in_order
from ropewalk.control.view import View
from ropewalk.rl.deliveries import ActorFacts
from ropewalk.rl.replay.table_info import TableInfo
from ropewalk.rl.view import (
    RATES_S,
    NumberedRow,
    environment_name,
    facts_of,
    replay_panel,
    replay_point,
    returns_panel,
    spaced,
    staleness_panel,
    throughput_panel,
)
from ropewalk.tracking.interruptions import RunStopped

if TYPE_CHECKING:
    from ropewalk.program.running import RunningProgram
    from ropewalk.rl.assembly import Assembly
    from ropewalk.rl.progress import ProgressLog

_OFFERS = ("returns", "throughput", "replay", "staleness")
_COSTLY = frozenset({"replay", "staleness"})
"""Panels whose data is asked for only while somebody looks."""
_INTEREST_S = 10.0
"""Seconds after the last look for which somebody is taken to look."""
_EVERY_S = 1.0
"""Seconds between two looks at replay and actors."""
_GRACE_S = 4.0
"""Seconds that a learner gets to write a last checkpoint."""
_MOST_POINTS = 3600


class RunningExperiment(LoopTarget):
    """Shows what is known of an experiment, whenever somebody looks.

    Args:
        assembly: assembly of the experiment.
        progress: its rows and evaluations.
        unit: unit of lags: "updates" or "rounds".
        learners: number of learners.
        run: id of its run in the store; "" if it is not tracked.

    Attributes:
        kind: see `ControlTarget`.
        id: see `ControlTarget`.
        program: the program that runs it; None if it runs in this process, or has not been launched.
    """

    def __init__(
        self, assembly: Assembly, progress: ProgressLog, *, unit: str = "rounds", learners: int = 1, run: str = ""
    ) -> None:
        super().__init__("experiment")
        self.program: RunningProgram | None = None
        self._experiment, self._progress, self._unit, self._run = assembly.experiment, progress, unit, run
        self._items_per_update = assembly.batch_size * learners
        self._settings: Mapping[str, Mapping[str, float | None]] = {}
        self._stopping = threading.Event()
        self._asked_at = float("-inf")
        self._looked_at = float("-inf")
        self._lock = threading.Lock()
        """Held while points of replay are added or read."""
        self._points: deque[dict[str, Any]] = deque(maxlen=_MOST_POINTS)
        self._num_points = 0
        self._tables: dict[str, TableInfo] = {}
        self._actors: Mapping[int, ActorFacts] = {}
        self._lags: dict[int, Sequence[int]] = {}

    @property
    def name(self) -> str:
        """Name of the agent's class."""
        return type(self._experiment.agent).__name__

    @contextlib.contextmanager
    def shown(self) -> Generator[None]:
        """Let other terminals and the page see an experiment that runs in this process, while the block runs."""
        with announced(self), self.noted():
            yield

    # --- what costs something -----------------------------------------------------------------------------------------

    @property
    def wants_look(self) -> bool:
        """Whether somebody looks at replay or the actors, and the last data is a second old."""
        now = time.monotonic()
        return now - self._asked_at < _INTEREST_S and now - self._looked_at >= _EVERY_S

    def look(
        self,
        settings: Mapping[str, Mapping[str, float | None]],
        tables: Mapping[str, TableInfo],
        actors: Mapping[int, ActorFacts] | None = None,
        lags: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        """Take what is known now.

        Args:
            settings: settings of the tables of replay, by name; see `replay_settings`.
            tables: facts of them, by name; with that of the learner, if there are several.
            actors: facts of actors by group, if blocks may be late.
            lags: lags of each group, the number of blocks by lag.
        """
        self._looked_at = time.monotonic()
        with self._lock:
            for name, info in tables.items():
                self._points.append(replay_point(name, info, self._progress.seconds, self._tables.get(name)))
                self._num_points += 1
            self._settings, self._tables = settings, dict(tables)
            self._actors, self._lags = actors or {}, dict(lags or {})

    # --- as other terminals see it ------------------------------------------------------------------------------------

    def view(self, panels: dict[str, int]) -> View:
        """See `Observable`."""
        if _COSTLY & panels.keys():
            self._asked_at = time.monotonic()
        progress, left_s = self._ahead()
        own = self._seen(
            facts=self._facts(),
            progress=progress,
            left_s=left_s,
            panels={name: self._panel(name, cursor) for name, cursor in panels.items() if name in _OFFERS},
            offers=_OFFERS,
            actions=("stop",),
        )
        return own if self.program is None else with_program(own, self.program.view(panels))

    def _panel(self, name: str, cursor: int) -> dict[str, Any]:
        log = self._progress
        if name == "replay":
            with self._lock:
                first = self._num_points - len(self._points)
                return replay_panel(list(self._points), first, self._tables, self._settings, cursor)
        if name == "staleness":
            last = log.newest(1) or [{}]
            return staleness_panel(self._actors, self._lags, last[-1], self._unit)
        base, rows = log.row_before(cursor), log.rows_from(cursor)
        if name == "throughput":
            return throughput_panel(spaced(rows, base, least_s=RATES_S), base, cursor, self._items_per_update)
        chosen = spaced(rows, base, is_over=self._over.is_set())
        evaluation = self._experiment.evaluation
        settings = {"total_steps": self._experiment.steps, "stop_at": evaluation.stop_at if evaluation else None}
        return returns_panel(chosen, log.numbered_evaluations, cursor, settings)

    def _facts(self) -> dict[str, float | int | str]:
        experiment = self._experiment
        settings = {"environment": environment_name(experiment.environment), "env_steps_in_all": experiment.steps}
        return facts_of(self._last_rows(), self._progress.numbered_evaluations, settings)

    def _last_rows(self) -> list[NumberedRow]:
        """Return the newest row, and one of about a second before it, from which rates follow."""
        rows = self._progress.newest(50)
        if not rows:
            return []
        numbered = [NumberedRow(number, row) for number, row in enumerate(rows)]
        recent = [each for each in numbered if each.seconds > numbered[-1].seconds - 2 * _EVERY_S]
        return [recent[0], numbered[-1]] if len(recent) > 1 else numbered[-2:]

    def _ahead(self) -> tuple[float | None, float | None]:
        """Return the share of the steps that are done, and the expected seconds until all are."""
        first, newest = self._progress.first, self._progress.newest(1)
        if first is None:
            return 0.0, None
        begin, now, total = float(first["steps"] or 0), float(newest[-1]["steps"] or 0), self._experiment.steps
        seconds = float(newest[-1]["seconds"] or 0) - float(first["seconds"] or 0)
        left_s = max(0.0, total - now) * seconds / (now - begin) if now > begin else None
        return min(1.0, now / total), left_s

    def act(self, action: str, process: str) -> str:
        """See `ControlTarget`; what is asked of a process is the program's to do."""
        if process and self.program is not None:
            return self.program.act(action, process)
        if action != "stop" or process:
            raise ValueError(f"an experiment can be asked to stop, not to {action!r} {process}".rstrip())
        self._stopping.set()
        self._state = "stopping"
        if self.program is None:
            return "it stops after the round in which it is, with a last checkpoint if it has a folder for them"
        stop = partial(self.program.stop, _GRACE_S)
        threading.Thread(target=stop, name="ropewalk-stop-experiment", daemon=True).start()
        return "its processes are asked to end"

    def stop(self, grace_s: float | None) -> None:
        """See `ControlTarget`."""
        if self.program is not None:
            self._stopping.set()
            self.program.stop(_GRACE_S if grace_s is None else grace_s)
            return
        self.act("stop", "")
        self._over.wait()

    def log_files(self) -> Mapping[str, Path]:
        """See `ControlTarget`."""
        return self.program.log_files() if self.program is not None else {}

    def stacks(self, node: str | None, timeout_s: float) -> Mapping[str, str]:
        """See `ControlTarget`."""
        return self.program.stacks(node, timeout_s) if self.program is not None else {}

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether it was asked to stop."""
        return self._stopping.is_set()

    def check_stop(self) -> None:
        """End the run, if that was asked for.

        Raises:
            RunStopped: it was.
        """
        if self._stopping.is_set():
            steps = float(next((row["steps"] or 0 for row in reversed(self._progress.newest(1))), 0))
            raise RunStopped(f"stopped by request after {steps:g} steps", steps)


def with_program(own: View, program: View) -> View:
    """Return the view of an experiment, with the processes, events and panels of its program."""
    return replace(
        own,
        state=program.state if own.state == "running" else own.state,
        facts=own.facts | {name: value for name, value in program.facts.items() if name not in own.facts},
        last_failure=own.last_failure or program.last_failure,
        processes=program.processes,
        events=in_order(program.events, own.events),
        panels=program.panels | own.panels,
        offers=(*own.offers, *program.offers),
        process_actions=program.process_actions,
    )


__all__ = ["RunningExperiment", "with_program"]
