"""How a search ends: in which state, and with which words."""

from __future__ import annotations

from ropewalk.errors import SearchFailed
from ropewalk.quantities import counted
from ropewalk.search.book import SearchBook
from ropewalk.search.trial_facts import TrialState
from ropewalk.tracking import records


def state_after(error: BaseException, interrupted: str) -> tuple[str, str]:
    """Return the state of a search that an exception has ended, and the cause.

    Args:
        error: the exception.
        interrupted: the cause if it is a KeyboardInterrupt.
    """
    if isinstance(error, SearchFailed):
        return records.FAILED, str(error)
    if isinstance(error, KeyboardInterrupt):
        return records.PAUSED, interrupted
    return records.PAUSED, f"{type(error).__name__}: {error}"  # no fault of the search: it can go on


def words_at_the_end(book: SearchBook, state: str, why: str) -> str:
    """Return what is said when a search ends; why it failed is said by the exception that follows."""
    if state == records.PAUSED:
        return f"paused ({why}); {counted(book.num_left, 'trial')} left: run the same command to go on"
    if state == records.FAILED:
        return f"failed after {counted(len(book.trials), 'trial')}"
    num_paused = sum(trial.state is TrialState.PAUSED for trial in book.trials)
    paused = f"; {num_paused} stay paused, as the scheduler gives them no more steps" if num_paused else ""
    return f"complete: {counted(len(book.trials), 'trial')}{paused}"


def words_at_the_end_of_population(num: int, state: str, why: str) -> str:
    """Return what is said when a search by population based training ends, as `words_at_the_end`.

    Args:
        num: number of members.
        state: of the search.
        why: the cause.
    """
    if state == records.PAUSED:
        return f"paused ({why}): run the same command to go on"
    return f"failed with {counted(num, 'trial')}" if state == records.FAILED else f"complete: {counted(num, 'trial')}"


__all__ = ["state_after", "words_at_the_end", "words_at_the_end_of_population"]
