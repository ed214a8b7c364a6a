"""What a submitted run prints: of a file on this machine, or of the engine's log of its job."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Generator, Iterator
from typing import Protocol

import typer

from ropewalk.cli.submissions import RunState, Submission, output_of, state_of
from ropewalk.engines import make_engine
from ropewalk.engines.engine import Engine
from ropewalk.errors import EngineError
from ropewalk.escaping import escaped_line
from ropewalk.program.log_files import LogFile

#: How often new lines are looked for: in a file, and at a cluster manager, which others ask as well.
_LOOK_HERE_S, _LOOK_S = 0.2, 2.0
#: So much of the end of an earlier log is looked for in a later one, to find what is new.
_OVERLAP = 4096


class OutputSource(Protocol):
    """Lines that somebody else writes."""

    def tail(self, num_lines: int) -> list[str]:
        """The last lines; `read_new` goes on behind them."""
        ...

    def read_new(self, *, everything: bool = False) -> list[str]:
        """The whole lines that have come since; with `everything` also a last one without an end."""
        ...


class JobOutput:
    """The log of a job, of which engines give the last part only."""

    def __init__(self, engine: Engine, run: Submission) -> None:
        self._engine = engine
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
        with contextlib.suppress(EngineError, OSError):  # not started yet, or forgotten; its state tells
            kept = output_of(self._run)
            text = kept.read_text(errors="replace") if kept.exists() else self._engine.logs(self._run.job)
            return text if everything else text[: text.rfind("\n") + 1]
        return ""


def _behind(seen: str, text: str) -> str:
    """What has come since; all of it if the end of what was seen is not there any more."""
    end = seen[-_OVERLAP:]
    at = text.rfind(end) if end else -1
    return text[at + len(end) :] if at >= 0 else text


@contextlib.contextmanager
def open_output(run: Submission) -> Generator[OutputSource]:
    """What a run prints.

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
    """Print the last lines, and with `follow` all that come until the run has ended; then says how."""
    with open_output(run) as output:
        _print(run, output.tail(num_lines), as_json)
        if not follow:
            return None
        for state in _until_ended(run):
            _print(run, output.read_new(everything=not state.is_live), as_json)
            if not state.is_live:
                return state
    return None


def _until_ended(run: Submission) -> Iterator[RunState]:
    while True:
        state = state_of(run)  # before the lines are read: those of a run that has ended are all there
        yield state
        time.sleep(_LOOK_HERE_S if run.is_local else _LOOK_S)


def _print(run: Submission, lines: list[str], as_json: bool) -> None:
    if not lines:
        return
    colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    shown = [
        json.dumps({"run": run.id, "line": line}) if as_json else escaped_line(line, colours=colours) for line in lines
    ]
    typer.echo("\n".join(shown), color=colours)
