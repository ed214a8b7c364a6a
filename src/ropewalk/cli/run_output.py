"""The output of a submitted run: from a file on this machine, or from the engine's log of its job."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Generator, Iterator
from typing import Protocol

import click

from ropewalk.cli.command_line import shows_colours
from ropewalk.cli.submissions import RunState, Submission, output_of, state_of
from ropewalk.engines import make_engine
from ropewalk.engines.engine import Engine
from ropewalk.errors import EngineError
from ropewalk.escaping import escaped_line
from ropewalk.program.log_files import LogFile

_LOOK_HERE_S, _LOOK_S = 0.2, 2.0
"""Seconds between two checks for new lines, in a file and at a cluster manager, which serves other users as well."""
_OVERLAP = 4096
"""The number of characters at the end of an earlier log that are searched in a later one, to find the new part."""


class OutputSource(Protocol):
    """Lines that another process writes."""

    def tail(self, num_lines: int) -> list[str]:
        """Return the last lines; `read_new` continues after them."""
        ...

    def read_new(self, *, everything: bool = False) -> list[str]:
        """Return the complete lines since the last call; with `everything` also a last incomplete line."""
        ...


class JobOutput:
    """The log of a job, of which engines return the last part only."""

    def __init__(self, engine: Engine, run: Submission) -> None:
        self.engine = engine
        """Where the job runs."""
        self._run = run
        self._seen = ""

    def tail(self, num_lines: int) -> list[str]:
        self._seen = self._whole_lines(everything=False)
        lines = self._seen.removesuffix("\n").split("\n") if self._seen else []
        return lines[-num_lines:] if num_lines else []

    def read_new(self, *, everything: bool = False) -> list[str]:
        text = self._whole_lines(everything=everything)
        new = _behind(self._seen, text)
        self._seen = text or self._seen
        return new.removesuffix("\n").split("\n") if new else []

    def _whole_lines(self, *, everything: bool) -> str:
        with contextlib.suppress(EngineError, OSError):  # not started yet, or forgotten; its state says so
            kept = output_of(self._run)
            text = kept.read_text(errors="replace") if kept.exists() else self.engine.logs(self._run.job)
            return text if everything else text[: text.rfind("\n") + 1]
        return ""


def _behind(seen: str, text: str) -> str:
    """Return the new part of a log; all of it if the end of the earlier log is not in it."""
    end = seen[-_OVERLAP:]
    at = text.rfind(end) if end else -1
    return text[at + len(end) :] if at >= 0 else text


@contextlib.contextmanager
def open_output(run: Submission) -> Generator[OutputSource]:
    """Open the output of a run.

    Raises:
        OSError: its file is gone.
        RopewalkError: its engine cannot be asked.
    """
    if run.is_local or output_of(run).exists():
        with LogFile(output_of(run)) as file:
            yield file
        return
    engine = make_engine(run.engine, run.options)
    try:
        yield JobOutput(engine, run)
    finally:
        engine.close()


def show(run: Submission, num_lines: int, *, follow: bool, as_json: bool = False) -> RunState | None:
    """Print the last lines, and with `follow` all later lines until the run has ended.

    Returns:
        Its state, if it has ended, or if it has no lines.
    """
    with open_output(run) as output:
        _print(run, lines := output.tail(num_lines), as_json)
        if not follow:
            return None if lines else state_of(run)
        for state in _until_ended(run, output.engine if isinstance(output, JobOutput) else None):
            _print(run, output.read_new(everything=not state.is_live), as_json)
            if not state.is_live:
                return state
    return None


def _until_ended(run: Submission, engine: Engine | None) -> Iterator[RunState]:
    while True:
        state = state_of(run, engine)  # before the lines are read: those of an ended run are complete
        yield state
        time.sleep(_LOOK_HERE_S if run.is_local else _LOOK_S)


def _print(run: Submission, lines: list[str], as_json: bool) -> None:
    if not lines:
        return
    colours = shows_colours()
    shown = [
        json.dumps({"run": run.id, "line": line}) if as_json else escaped_line(line, colours=colours) for line in lines
    ]
    click.echo("\n".join(shown), color=colours)
