"""A barrier: a fixed number of parties wait for each other, round after round.

                      the last comes             release
    filling ──────────────────────────▶ acting ──────────▶ filling, the next round
       │       (without an action: ────────────────────────▶ at once)
       │                                   │
       └── time over, party gone, abort ───┴──▶ broken ── reset ──▶ filling

If there is an action, the last party to arrive runs it and reports when it is done. Parties that arrive meanwhile
belong to the next round and wait in a queue before the barrier, as in `threading.Barrier`, so that rounds never mix.
"""

from __future__ import annotations

from collections import deque
from threading import BrokenBarrierError
from typing import Any, ClassVar

from ropewalk.sharing.states.waiting import CallOutcome, Party, Waiter, Waiters


class BarrierState:
    """The state of a `multiprocessing.Barrier`.

    Args:
        parties: the number of parties that wait for each other, at least 1.

    Raises:
        ValueError: `parties` is less than 1.
    """

    METHODS: ClassVar = frozenset({"wait", "release", "abort", "reset", "n_waiting", "broken"})
    SEALED: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, parties: int) -> None:
        if parties < 1:
            raise ValueError(f"parties must be > 0, not {parties}")
        self._parties = parties
        self._round: list[Waiter] = []  # In order of arrival: the position is the index.
        self._actor: Party | None = None
        self._unheard: Waiter | None = None  # The wait of the acting party, until it has its answer.
        self._line: deque[tuple[Waiter, bool]] = deque()
        self._broken = ""  # The reason, if it is broken.
        self._breaks_next = ""  # The reason why it breaks after the present round's action.

    def wait(self, waiter: Waiter, has_action: bool = False) -> list[CallOutcome]:
        """Wait for the others: each call ends with its index, in order of arrival.

        With an action, the last call ends immediately with ("act", index); that party runs the action, and calls
        `release` or `abort`. This outcome is lent: if it does not arrive, no party acts, and the barrier is broken.
        """
        if self._actor is None:
            return self._enter(waiter, has_action)
        if self._breaks_next:
            return [_broken(waiter, self._breaks_next)]
        self._line.append((waiter, has_action))
        return []

    def release(self, waiter: Waiter) -> list[CallOutcome]:
        """End the round whose action this party has run; BrokenBarrierError if it was broken meanwhile."""
        if self._actor is None or self._actor != waiter.party:
            why = self._broken or "the barrier was reset while its action ran"
            return [_broken(waiter, why)]
        outcomes = [CallOutcome(waiter)]
        outcomes += [CallOutcome(other, index) for index, other in enumerate(self._round[:-1])]
        self._round.clear()
        self._actor = self._unheard = None
        self._broken, self._breaks_next = self._breaks_next, ""
        return outcomes + self._enter_those_in_line()

    def abort(self, waiter: Waiter) -> list[CallOutcome]:
        """Break the barrier: waiting parties, and all that arrive, get BrokenBarrierError until it is reset."""
        return [CallOutcome(waiter), *self._break(f"{waiter.party.name} aborted it")]

    def reset(self, waiter: Waiter) -> list[CallOutcome]:
        """Reset the barrier: waiting parties get BrokenBarrierError, and arriving ones begin the first round."""
        outcomes = [CallOutcome(waiter), *self._end_round(f"{waiter.party.name} reset it")]
        self._broken = ""
        return outcomes + self._enter_those_in_line()

    def n_waiting(self, waiter: Waiter) -> list[CallOutcome]:
        """Count the parties that wait in this round."""
        return [CallOutcome(waiter, len(self._round))]

    def broken(self, waiter: Waiter) -> list[CallOutcome]:
        """Return whether it is broken."""
        return [CallOutcome(waiter, bool(self._broken))]

    def give_up(self, waiter: Waiter, timed_out: bool) -> list[CallOutcome]:
        """End a wait. The others would wait for this party for ever, so this breaks the barrier."""
        why = f"{waiter.party.name} {'waited for too long' if timed_out else 'does not wait any more'}"
        if waiter is self._unheard:
            return self._break(why)
        return self._leave({waiter}, why, tell_them=timed_out)

    def taken(self, waiter: Waiter) -> list[CallOutcome]:
        """Record that the acting party has its answer."""
        if waiter is self._unheard:
            self._unheard = None
        return []

    def party_gone(self, process: str, name: str) -> list[CallOutcome]:
        """Break the barrier if this process waited at it, or ran its action."""
        why = f"{name} is gone"
        waiters = {*self._round, *(waiter for waiter, _ in self._line)}
        outcomes = self._leave({waiter for waiter in waiters if waiter.party.process == process}, why, tell_them=False)
        if self._actor is not None and self._actor.process == process:
            outcomes += self._break(why)
        return outcomes

    # The plain form; see `recorded.py`

    @property
    def resting(self) -> tuple[int, int, int] | None:
        """Nothing that is to be kept; None while calls wait or an action runs, and while it is broken."""
        is_at_rest = not (self._round or self._actor or self._line or self._broken)
        return (0, 0, 0) if is_at_rest else None

    def rest(self, _first: int, _second: int, _third: int, waiters: Waiters) -> None:
        """Take the state from its plain form at rest, in which there is nothing."""

    def plain(self) -> tuple[Any, ...]:
        """Return everything that is to be kept, as plain values."""
        actor = (int(self._actor.process), self._actor.thread) if self._actor else None
        line = [(waiter.key, has_action) for waiter, has_action in self._line]
        unheard = self._unheard and self._unheard.key
        return [waiter.key for waiter in self._round], actor, unheard, line, self._broken, self._breaks_next

    def restore(self, plain: tuple[Any, ...], waiters: Waiters) -> None:
        """Take the state from its plain form."""
        waiting, actor, unheard, line, self._broken, self._breaks_next = plain
        self._round = list(map(waiters.waiter, waiting))
        self._actor = waiters.party(*actor) if actor else None
        self._unheard = waiters.waiter(unheard) if unheard else None
        self._line = deque((waiters.waiter(key), has_action) for key, has_action in line)

    def _enter(self, waiter: Waiter, has_action: bool) -> list[CallOutcome]:
        if self._broken:
            return [_broken(waiter, self._broken)]
        self._round.append(waiter)
        if len(self._round) < self._parties:
            return []
        if has_action:
            self._actor, self._unheard = waiter.party, waiter
            return [CallOutcome(waiter, ("act", self._parties - 1), lent=True)]
        outcomes = [CallOutcome(other, index) for index, other in enumerate(self._round)]
        self._round.clear()
        return outcomes

    def _enter_those_in_line(self) -> list[CallOutcome]:
        outcomes: list[CallOutcome] = []
        while self._line and self._actor is None:
            outcomes += self._enter(*self._line.popleft())
        return outcomes

    def _leave(self, waiters: set[Waiter], why: str, tell_them: bool) -> list[CallOutcome]:
        """Break the round that these calls belong to; they get an error themselves only if `tell_them`."""
        waiting = self._round if self._actor is None else self._round[:-1]
        outcomes: list[CallOutcome] = []
        if any(waiter in waiters for waiter in waiting):
            outcomes = self._break(why)
        elif any(waiter in waiters for waiter, _ in self._line):
            # The round whose action is running is complete without it: only the next one is broken.
            self._breaks_next = why
            outcomes = [_broken(waiter, why) for waiter, _ in self._line]
            self._line.clear()
        return [outcome for outcome in outcomes if tell_them or outcome.waiter not in waiters]

    def _break(self, why: str) -> list[CallOutcome]:
        self._broken = self._broken or why
        return self._end_round(why) + self._enter_those_in_line()

    def _end_round(self, why: str) -> list[CallOutcome]:
        """End the waits of this round with an error; the acting party gets it when it calls `release`."""
        waiting = self._round if self._actor is None else self._round[:-1]
        outcomes = [_broken(waiter, why) for waiter in waiting]
        self._round.clear()
        self._actor = self._unheard = None
        self._breaks_next = ""
        return outcomes


def _broken(waiter: Waiter, why: str) -> CallOutcome:
    return CallOutcome(waiter, error=BrokenBarrierError(f"the barrier is broken: {why}; reset() makes it anew"))
