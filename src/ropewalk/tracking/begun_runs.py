"""The runs that a launcher has begun, in a file, for the launcher that is started again after it was killed.

    launcher ──begins──▶ run 4f..  ─▶  {"kind": "script", "project": "digits", "store": ..., "run": "4f.."}
    launcher, again ──begins its first run of that kind, project and store──▶ goes on with 4f..

It runs the same script, so the run that it begins n-th is the one that its predecessor began n-th. A run that was done
goes on, too: it has no step left, and its newest checkpoint is its result. Only the launcher itself has the file, and
not its workers: `ropewalk run` takes the variable that names it out of the environment.
"""

from __future__ import annotations

import collections
import contextlib
import os
import threading
from collections.abc import MutableMapping
from pathlib import Path

import msgspec

from ropewalk.trusted_files import open_to_append, read_trusted

BEGUN_RUNS = "ROPEWALK_BEGUN_RUNS"
"""The variable that names the file, from `ropewalk submit --launcher-restarts`."""


class RunPlace(msgspec.Struct, frozen=True):
    """What is the same of a run when its script runs again."""

    kind: str
    project: str
    """As it was given; empty if none was."""
    store: str


class _Line(msgspec.Struct, frozen=True):
    place: RunPlace
    run: str


class BegunRuns:
    """Tells which run a launcher goes on with, and notes those that it begins. Thread-safe.

    Args:
        file: where they are noted, one in each line; made when the first one is.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._earlier: dict[RunPlace, collections.deque[str]] = collections.defaultdict(collections.deque)
        for line in _lines(file):
            self._earlier[line.place].append(line.run)

    def earlier(self, place: RunPlace) -> str:
        """Return the run that the predecessor has begun at this place, each once; empty if there is none left."""
        with self._lock:
            runs = self._earlier[place]
            return runs.popleft() if runs and os.getpid() == self._pid else ""  # a forked child is not a launcher

    def note(self, place: RunPlace, run: str) -> None:
        """Note a run that has begun."""
        if os.getpid() != self._pid:
            return
        with self._lock, contextlib.suppress(OSError), open(open_to_append(self._file), "ab") as file:
            file.write(msgspec.json.encode(_Line(place, run)) + b"\n")


def _lines(file: Path) -> list[_Line]:
    found: list[_Line] = []
    with contextlib.suppress(OSError):  # no run was begun yet, or the file is not ours
        for line in read_trusted(file).splitlines():
            with contextlib.suppress(ValueError, RecursionError):  # its writer was killed in the middle of it
                found.append(msgspec.json.decode(line, type=_Line))
    return found


_of_this_launcher: list[BegunRuns] = []


def take_begun_runs(environ: MutableMapping[str, str]) -> None:
    """Make this process the launcher whose runs are noted, if the environment says so."""
    file = environ.pop(BEGUN_RUNS, "")
    if file:
        _of_this_launcher[:] = [BegunRuns(Path(file))]


def begun_runs() -> BegunRuns | None:
    """Return the runs of this launcher; None if they are not noted."""
    return _of_this_launcher[0] if _of_this_launcher else None


__all__ = ["BEGUN_RUNS", "BegunRuns", "RunPlace", "begun_runs", "take_begun_runs"]
