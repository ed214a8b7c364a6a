"""The run of this process: a script's, a trial's, or a program's."""

from __future__ import annotations

import os

from ropewalk.processes.given_run import give_run
from ropewalk.tracking.given_runs import given_text, run_given_here
from ropewalk.tracking.run import Run

_current: tuple[int, Run] | None = None
"""The process id, because a forked child does not own its parent's run; and the run."""


def current_run() -> Run | None:
    """Return the run that this process writes, wherever in the code this is called; None if there is none.

    Workers of pools and nodes of programs that were started during a run write to that run.
    """
    if _current is not None and _current[0] == os.getpid():
        return _current[1]
    return run_given_here()


def set_current_run(run: Run | None) -> None:
    """Make a run that of this process, and of those that it starts from now on; None: it has none any more."""
    global _current
    _current = None if run is None else (os.getpid(), run)
    give_run("" if run is None else given_text(run))


__all__ = ["current_run", "set_current_run"]
