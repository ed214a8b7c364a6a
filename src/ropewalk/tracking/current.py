"""The run of this process: a script's, a trial's, or a program's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ropewalk.tracking.run import Run

_current: tuple[int, Run] | None = None
"""The process id, because a forked child does not own its parent's run; and the run."""


def current_run() -> Run | None:
    """Return the run that this process writes, wherever in the code this is called; None if there is none."""
    return _current[1] if _current is not None and _current[0] == os.getpid() else None


def set_current_run(run: Run | None) -> None:
    """Make a run that of this process; None: it has none any more."""
    global _current
    _current = None if run is None else (os.getpid(), run)


__all__ = ["current_run", "set_current_run"]
