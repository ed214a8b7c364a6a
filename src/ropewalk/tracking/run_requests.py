"""Requests to a run from another process: pause, stop and kill, and their answers.

pause, stop, kill ─▶ request in the store ─▶ the process of the run, which looks every half second ─▶ answer
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from ropewalk.errors import RunUnsuitable
from ropewalk.escaping import escaped
from ropewalk.tracking.records import RUNNING, STOPPED, AttemptEnded, RunRecord, StateIs
from ropewalk.tracking.store.owners import LocalProcesses
from ropewalk.tracking.store.rows import LOST, RequestRow, RunRow

if TYPE_CHECKING:  # stores need an extra, and `ropewalk --help` does not
    from ropewalk.tracking.store.store import RunStore

ANSWER_S = 5.0
"""Seconds within which the process of a run answers, which looks for requests every half second."""
PARTICIPLES = {"pause": "paused", "stop": "stopped", "kill": "killed"}
"""What can be asked of a run, and what the run is then."""
_LOOK_S = 0.1


def check_can_be_asked(row: RunRow, action: str) -> None:
    """Check that a run is in a state in which it can be asked for an action.

    Raises:
        RunUnsuitable: it is not running.
    """
    if row.state == RUNNING or (row.state == LOST and action == "kill" and is_here(row)):
        return
    state = "lost: the process that wrote it is gone" if row.state == LOST else row.state
    raise RunUnsuitable(
        f"run {escaped(row.name)} ({row.id}) is {state}; only a running one can be {PARTICIPLES[action]}"
    )


def answer_to(store: RunStore, number: int, timeout_s: float = ANSWER_S) -> RequestRow | None:
    """Wait for the answer to a request; None if there is none in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = store.requested(number)
        if found is not None and found.answered is not None:
            return found
        time.sleep(_LOOK_S)
    return _answered_for_the_dead(store, number)


def _answered_for_the_dead(store: RunStore, number: int) -> RequestRow | None:
    """Answer a request to a run whose process has died since; None if it may still answer."""
    found = store.requested(number)
    if found is None or (found.action != "kill" and found.answered is None and _is_lost(store, found.run)):
        store.answer(number, False, "its process died before it answered; ropewalk runs continue goes on with the run")
        found = store.requested(number)
    return found if found is not None and found.answered is not None else None


def _is_lost(store: RunStore, run: str) -> bool:
    row = store.run(run)
    return row.state == LOST or (row.kind == "trial" and store.run(row.parent).state == LOST)


def wait_for_end(store: RunStore, run: str, timeout_s: float) -> None:
    """Wait until a run does not run any more, but not longer than `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and store.run(run).state == RUNNING:
        time.sleep(_LOOK_S)


def answer_words(row: RunRow, answered: RequestRow | None, timeout_s: float = ANSWER_S) -> str:
    """Return what a user is told of a request.

    Args:
        row: the run, after the answer.
        answered: the request with its answer; None if there was none in time.
        timeout_s: how long it was waited for.
    """
    if answered is not None:
        return answered.answer
    owner = f"process {row.owner.pid} on {row.owner.host}" if row.owner else "its process"
    return f"{owner} has not answered within {timeout_s:g} s; the request stays open"


def kill_run(store: RunStore, row: RunRow, timeout_s: float = ANSWER_S) -> tuple[int, RequestRow | None]:
    """Kill the process of a run with SIGKILL: it is asked first, and killed from here if it does not answer.

    Returns:
        The number of the request, and the request with its answer; None for that if the process is on another host and
        does not answer.
    """
    number = store.request(row.id, "kill")
    answered = answer_to(store, number, timeout_s)
    # A user who can write to the database could name another process of this user as the owner.
    if answered is None and "://" not in store.where and is_here(row):
        answered = _kill_here(store, row, number)
    elif answered is not None and answered.ok:  # it answers first, and writes its end then
        wait_for_end(store, row.id, timeout_s)
    return number, answered


def is_here(row: RunRow) -> bool:
    """Whether the process that owns a run is one of this host, and not another one with its number."""
    here = LocalProcesses()
    owner = row.owner
    if owner is None or owner.host != here.host or not here.boot or owner.boot != here.boot:
        return False
    return owner.start_ticks > 0 and here.start_ticks(owner.pid) == owner.start_ticks


def _kill_here(store: RunStore, row: RunRow, number: int) -> RequestRow | None:
    """Kill a process that does not answer, because it is deep in C code or was halted."""
    assert row.owner is not None
    os.kill(row.owner.pid, signal.SIGKILL)
    now, why = time.time(), "killed by `ropewalk runs kill`; its process did not answer"
    store.answer(number, True, f"process {row.owner.pid} did not answer, and was killed")
    attempts = store.attempts(row.id)
    ended = [AttemptEnded(attempts[-1].number, "lost", now, why)] if attempts else []
    store.apply([RunRecord(row.id, record) for record in (*ended, StateIs(STOPPED, now, why))])
    return store.requested(number)


__all__ = [
    "ANSWER_S",
    "PARTICIPLES",
    "answer_to",
    "answer_words",
    "check_can_be_asked",
    "is_here",
    "kill_run",
    "wait_for_end",
]
