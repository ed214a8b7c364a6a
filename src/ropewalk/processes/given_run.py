"""The run that processes are given when they are started: that of this process, if it has one.

Here it is a text; `ropewalk.tracking` knows what it means.
"""

from __future__ import annotations

from ropewalk.processes import bootstrap

_run = ""


def give_run(run: str) -> None:
    """Give a run to all processes that this one starts from now on, unless their spec has another; "": none."""
    global _run
    _run = run


def run_to_give() -> str:
    """Return the run that a process is given now: in a process of a session, by default the one it was given itself."""
    return _run or (bootstrap.current.run if bootstrap.current else "")
