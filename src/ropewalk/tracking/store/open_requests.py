"""Requests that no process will answer: the store answers them itself, in the transaction that makes it so.

    a run ends           ──▶ requests to it, and to the trials of a search that ends: "it had ended already"
    a run begins (again) ──▶ requests that a process which died has left: they are not meant for the new one
    a request to a run that has ended since it was looked at ──▶ answered as it is made

Trials are answered by their search while it runs, also those that are paused or wait for a place.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, exists, or_, select, update

from ropewalk.tracking.records import DONE, FAILED, PAUSED, QUEUED, RUNNING, STOPPED
from ropewalk.tracking.store.schema import REQUESTS, RUNS

_OVER = (DONE, FAILED, STOPPED)
_HAS_OPEN = select(exists().where(REQUESTS.c.answered.is_(None)))
_LEFT = "the process that was asked has ended without an answer, and the run goes on in another one; ask again"


def answer_for_states(connection: Connection, states: Mapping[str, str], now: float) -> None:
    """Answer what nobody answers any more, now that runs have entered states.

    Args:
        connection: in the transaction that has written the states.
        states: the new states, by run.
        now: seconds since the epoch.
    """
    if not connection.execute(_HAS_OPEN).scalar():  # as nearly always
        return
    for run, state in states.items():
        if state != QUEUED and (state in _OVER or not _is_kept_by_search(connection, run)):
            _answer(connection, run, _LEFT if state == RUNNING else words_of_the_end(state), now)


def answer_if_over(connection: Connection, number: int, run: str, now: float) -> None:
    """Answer a request as it is made, if its run has ended since the user looked at it.

    Args:
        connection: in the transaction that has made it.
        number: number of the request.
        run: the run.
        now: seconds since the epoch.
    """
    # The lock, which only PostgreSQL has, is that of a transaction that ends the run: one of the two sees the other.
    state = connection.execute(select(RUNS.c.state).where(RUNS.c.id == run).with_for_update()).scalar()
    if state in _OVER or (state == PAUSED and not _is_kept_by_search(connection, run)):
        mine = update(REQUESTS).where(REQUESTS.c.number == number)
        connection.execute(mine.values(answered=now, ok=False, answer=words_of_the_end(state)))


def words_of_the_end(state: str) -> str:
    """Return the answer to a request that has come too late."""
    return f"it had ended already, and is {state}"


def _is_kept_by_search(connection: Connection, run: str) -> bool:
    """Whether a run is a trial of a search that runs; a fork is a run of its own."""
    search = RUNS.alias()
    parent = select(search.c.state).join(RUNS, RUNS.c.parent == search.c.id)
    state = connection.execute(parent.where(RUNS.c.id == run, RUNS.c.parent_step.is_(None))).scalar()
    return state == RUNNING


def _answer(connection: Connection, run: str, text: str, now: float) -> None:
    family = select(RUNS.c.id).where(or_(RUNS.c.id == run, (RUNS.c.parent == run) & RUNS.c.parent_step.is_(None)))
    open_ones = update(REQUESTS).where(REQUESTS.c.answered.is_(None), REQUESTS.c.run.in_(family))
    connection.execute(open_ones.values(answered=now, ok=False, answer=text))


__all__ = ["answer_for_states", "answer_if_over", "words_of_the_end"]
