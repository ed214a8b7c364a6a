"""The run that processes are given when they are started: that of this process, if it has one.

Here it is a text; `ropewalk.tracking` knows what it means, and is told of deaths of processes that were given one.
"""

from __future__ import annotations

from collections.abc import Callable

from ropewalk.processes import bootstrap
from ropewalk.processes.listeners import Listeners
from ropewalk.supervision.failure import DeathRecord

DeathHandler = Callable[[str, DeathRecord], object]
"""Called with the run that a process was given and the record of its death, on the thread of a session's loop."""

_run = ""
_of_deaths: Listeners[DeathHandler] = Listeners()


def give_run(run: str) -> None:
    """Give a run to all processes that this one starts from now on, unless their spec has another; "": none."""
    global _run
    _run = run


def run_to_give() -> str:
    """Return the run that a process is given now: in a process of a session, by default the one it was given itself."""
    return _run or (bootstrap.current.run if bootstrap.current else "")


def listen_to_deaths(handler: DeathHandler) -> Callable[[], None]:
    """Have a handler told of each process of this one that was given a run, and died although nobody asked it to.

    It is not told of processes whose spec names a run: their owner reports them.

    Returns:
        A function that ends this.
    """
    return _of_deaths.add(handler)


def tell_of_death(run: str, record: DeathRecord) -> None:
    """Tell the handlers of a death."""
    for handler in _of_deaths:
        handler(run, record)
