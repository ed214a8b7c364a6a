"""`Program.launch(track=...)`: the run that keeps what a program reports: its graph, its table, deaths, and its end."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from ropewalk.program.conductor import Conductor
from ropewalk.program.instructions import ProgramOutcome
from ropewalk.program.messages import NOBODY_WAITS
from ropewalk.program.reporting import report
from ropewalk.quantities import counted
from ropewalk.tracking.observed_run import ObservedRun, Track, observed
from ropewalk.tracking.records import DONE, FAILED, STOPPED

if TYPE_CHECKING:
    from ropewalk.program.program import Program

_ROW_S = 5.0
"""Seconds between rows."""


def observe(track: Track, program: Program, mode: str, engine: str) -> ObservedRun:
    """Begin the run of a program.

    Args:
        track: as for `Program.launch`.
        program: the program.
        mode: how it is launched.
        engine: where it is launched.
    """
    nodes = {spec.name: {"kind": spec.node.kind, "replicas": spec.replicas} for spec in program.specs}
    watched = observed(track, "program", program.name, {"nodes": nodes, "mode": mode, "engine": engine}, take=_take)
    if watched.run is not None and not isinstance(track, ObservedRun):
        words = ", ".join(f"{counted(spec.replicas, 'replica')} of {spec.name}" for spec in program.specs)
        watched.event("plan", f"{program.name}: {words}", graph=json.loads(program.graph("json")))
    return watched


class StatusRows:
    """Writes the table of a program's nodes regularly, and how the program ended; and ends it when that is asked for.

    Args:
        conductor: the conductor of the program.
        watched: gets the rows.
    """

    def __init__(self, conductor: Conductor, watched: ObservedRun) -> None:
        self._conductor = conductor
        self._watched = watched
        self._began_s = time.monotonic()

    def begin(self) -> None:
        """Write rows from now on; on the loop."""
        if self._watched.run is not None:
            self._conductor.hosting.loop.call_later(_ROW_S, self._go_on)
            self._watched.when_asked = lambda: self._conductor.hosting.loop.call_soon(self._stop)
            if self._watched.asked:
                self._stop()

    def end(self) -> None:
        """Write the last row, and end the run as the program has ended; not from the loop's thread."""
        if self._watched.run is None:
            return
        self._write()
        conductor = self._conductor
        error = conductor.error or conductor.session_error
        match conductor.supervisor.outcome:
            case ProgramOutcome.COMPLETED:
                self._watched.end_as(DONE)
            case ProgramOutcome.FAILED:
                self._watched.end_as(FAILED, str(error or ""))
            case _:
                self._watched.end_as(STOPPED, conductor.supervisor.stop_reason)

    def _stop(self) -> None:
        self._conductor.stop("its run was asked to stop", None)

    def _go_on(self) -> None:
        conductor = self._conductor
        if conductor.supervisor.done:
            return
        self._write()
        conductor.reports.ask(NOBODY_WAITS)  # the answers are in the next row
        conductor.hosting.loop.call_later(_ROW_S, self._go_on)

    def _write(self) -> None:
        row: dict[str, Any] = {}
        for node in report(self._conductor, "", 0.0).nodes:
            for name in ("restarts", "memory_bytes", "cpu_s", "calls_done", "calls_waiting"):
                row[f"{node.label}/{name}"] = getattr(node, name)
        self._watched.row(row, time.monotonic() - self._began_s)


def _take(watched: ObservedRun, action: str) -> tuple[bool, str]:
    if action != "stop":
        return False, "a program cannot pause; its nodes keep their states by checkpoint_s="
    watched.ask(action)
    return True, "its nodes are asked to end"
