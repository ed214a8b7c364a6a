"""A condition: threads sleep without their lock until somebody notifies them, and wake up with it.

    wait ─▶ sleepers: S3 S2 S1 ─ notify, time over ─▶ claims of the lock ─ the lock is free ─▶ outcome True, False

Whoever is on the way from the sleepers to the lock when it dies or is cancelled hands its notification on.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from ropewalk.sharing.states.lock import LockClaim, LockState
from ropewalk.sharing.states.waiting import CallOutcome, Waiter


@dataclass(frozen=True, slots=True, eq=False)
class _Sleeper:
    waiter: Waiter
    depth: int  # How often it owned the lock.


class ConditionState:
    """What `multiprocessing.Condition` does.

    Args:
        lock: the lock that it releases and acquires again; it has handles of its own.
    """

    METHODS: ClassVar = frozenset({"wait", "notify", "notify_all", "num_waiters", "resume"})
    SEALED: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, lock: LockState) -> None:
        self._lock = lock
        self._sleepers: deque[_Sleeper] = deque()
        self._awake: dict[LockClaim, bool] = {}  # Claims of the lock, and whether they come of a notification.
        self._interrupted: dict[tuple[str, int], int] = {}  # (process, thread) -> how often it owned the lock.

    def wait(self, waiter: Waiter) -> list[CallOutcome]:
        """Release the lock and sleep: True when notified, False when the time is over; the lock is back then.

        True is a text instead if the lock's owner before died with it: the record of that.
        """
        if not self._lock.owned_by(waiter.party):
            error = AssertionError("must acquire() condition before using wait()")
            return [CallOutcome(waiter, error=error)]
        self._sleepers.append(_Sleeper(waiter, self._lock.depth))
        return self._lock.free()

    def notify(self, waiter: Waiter, n: int = 1) -> list[CallOutcome]:
        """Wake up those that sleep longest, at most n."""
        if not self._lock.owned_by(waiter.party):
            return [CallOutcome(waiter, error=AssertionError("lock is not owned"))]
        return [CallOutcome(waiter), *self._wake(n)]

    def notify_all(self, waiter: Waiter) -> list[CallOutcome]:
        """Wake up all that sleep."""
        return self.notify(waiter, len(self._sleepers))

    def num_waiters(self, waiter: Waiter) -> list[CallOutcome]:
        """Count those that sleep."""
        return [CallOutcome(waiter, len(self._sleepers))]

    def resume(self, waiter: Waiter) -> list[CallOutcome]:
        """Have the lock back as it was before a wait that was cancelled (by Ctrl-C, say): True when it is so."""
        party = waiter.party
        depth = self._interrupted.pop((party.process, party.thread), 1)
        if self._lock.owned_by(party):  # The wait had ended already when it was cancelled.
            return [CallOutcome(waiter, True)]
        return self._claim(LockClaim(waiter, depth), notified=False)

    def give_up(self, waiter: Waiter, timed_out: bool) -> list[CallOutcome]:
        """End a wait: one whose time is over needs its lock first, one that is cancelled hands its notification on."""
        sleeper = next((sleeper for sleeper in self._sleepers if sleeper.waiter is waiter), None)
        if sleeper is not None:
            self._sleepers.remove(sleeper)
            if timed_out:
                return self._claim(LockClaim(waiter, sleeper.depth, value=False), notified=False)
            self._interrupted[(waiter.party.process, waiter.party.thread)] = sleeper.depth
            return []
        claim = next((claim for claim in self._awake if claim.waiter is waiter and not claim.granted), None)
        if claim is None or timed_out:
            return []  # It was notified in time, and has its outcome as soon as it has the lock.
        self._interrupted[(waiter.party.process, waiter.party.thread)] = claim.depth
        return self._withdraw([claim])

    def taken(self, waiter: Waiter) -> list[CallOutcome]:
        """Nothing is ever lent here."""
        return []

    def party_gone(self, process: str, name: str) -> list[CallOutcome]:
        """Forget the calls of this process, and hand its notifications on. The lock hears of it for itself."""
        self._sleepers = deque(sleeper for sleeper in self._sleepers if sleeper.waiter.party.process != process)
        self._interrupted = {key: depth for key, depth in self._interrupted.items() if key[0] != process}
        return self._withdraw(
            [claim for claim in self._awake if claim.waiter.party.process == process and not claim.granted]
        )

    def _wake(self, n: int) -> list[CallOutcome]:
        outcomes: list[CallOutcome] = []
        for _ in range(min(n, len(self._sleepers))):
            sleeper = self._sleepers.popleft()
            outcomes += self._claim(LockClaim(sleeper.waiter, sleeper.depth), notified=True)
        return outcomes

    def _claim(self, claim: LockClaim, notified: bool) -> list[CallOutcome]:
        self._awake = {other: told for other, told in self._awake.items() if not other.granted}
        self._awake[claim] = notified
        return self._lock.claim(claim)

    def _withdraw(self, claims: list[LockClaim]) -> list[CallOutcome]:
        """Take claims back that will not be granted, and wake up others in the place of those that were notified."""
        for claim in claims:
            self._lock.withdraw(claim)
        return self._wake(sum(self._awake.pop(claim) for claim in claims))
