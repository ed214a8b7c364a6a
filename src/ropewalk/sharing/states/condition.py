"""A condition: threads sleep without their lock until they are notified, and wake up with it.

    wait ─▶ sleepers: S3 S2 S1 ─ notify, timeout ─▶ claims of the lock ─ the lock is free ─▶ outcome True, False

If a call that was notified dies or is cancelled before it has the lock, its notification goes to another one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar

from ropewalk.sharing.states.lock import LockClaim, LockState
from ropewalk.sharing.states.waiting import CallOutcome, Waiter, Waiters


@dataclass(frozen=True, slots=True, eq=False)
class _Sleeper:
    waiter: Waiter
    depth: int  # How many times it owned the lock.


class ConditionState:
    """The state of a `multiprocessing.Condition`.

    Args:
        lock: the lock that it releases and acquires again; it has handles of its own.
    """

    METHODS: ClassVar = frozenset({"wait", "notify", "notify_all", "num_waiters", "resume"})
    SEALED: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, lock: LockState) -> None:
        self._lock = lock
        self._sleepers: deque[_Sleeper] = deque()
        self._awake: dict[LockClaim, bool] = {}  # Claims of the lock, and whether they were notified.
        self._interrupted: dict[tuple[str, int], int] = {}  # (process, thread) -> how many times it owned the lock.

    def wait(self, waiter: Waiter) -> list[CallOutcome]:
        """Release the lock and sleep: True when notified, False on a timeout; the lock is owned again then.

        True is replaced by a text if the lock's previous owner died with it: the record of that.
        """
        if not self._lock.owned_by(waiter.party):
            error = AssertionError("must acquire() condition before using wait()")
            return [CallOutcome(waiter, error=error)]
        self._sleepers.append(_Sleeper(waiter, self._lock.depth))
        return self._lock.free()

    def notify(self, waiter: Waiter, n: int = 1) -> list[CallOutcome]:
        """Wake those that have slept longest, at most n."""
        if not self._lock.owned_by(waiter.party):
            return [CallOutcome(waiter, error=AssertionError("lock is not owned"))]
        return [CallOutcome(waiter), *self._wake(n)]

    def notify_all(self, waiter: Waiter) -> list[CallOutcome]:
        """Wake all sleepers."""
        return self.notify(waiter, len(self._sleepers))

    def num_waiters(self, waiter: Waiter) -> list[CallOutcome]:
        """Count the sleepers."""
        return [CallOutcome(waiter, len(self._sleepers))]

    def resume(self, waiter: Waiter) -> list[CallOutcome]:
        """Own the lock again as before a wait that was cancelled (by Ctrl-C, say): True once it is owned."""
        party = waiter.party
        depth = self._interrupted.pop((party.process, party.thread), 1)
        if self._lock.owned_by(party):  # The wait had ended already when it was cancelled.
            return [CallOutcome(waiter, True)]
        return self._claim(LockClaim(waiter, depth), notified=False)

    def give_up(self, waiter: Waiter, timed_out: bool) -> list[CallOutcome]:
        """End a wait: a wait that timed out needs its lock first, one that is cancelled passes its notification on."""
        sleeper = next((sleeper for sleeper in self._sleepers if sleeper.waiter is waiter), None)
        if sleeper is not None:
            self._sleepers.remove(sleeper)
            if timed_out:
                return self._claim(LockClaim(waiter, sleeper.depth, value=False), notified=False)
            self._interrupted[(waiter.party.process, waiter.party.thread)] = sleeper.depth
            return []
        claim = next((claim for claim in self._awake if claim.waiter is waiter and not claim.granted), None)
        if claim is None or timed_out:
            return []  # It was notified in time, and ends as soon as it has the lock.
        self._interrupted[(waiter.party.process, waiter.party.thread)] = claim.depth
        return self._withdraw([claim])

    def taken(self, waiter: Waiter) -> list[CallOutcome]:
        """Do nothing: nothing is ever lent here."""
        return []

    def party_gone(self, process: str, name: str) -> list[CallOutcome]:
        """Forget the calls of this process, and pass its notifications on. The lock is told separately."""
        self._sleepers = deque(sleeper for sleeper in self._sleepers if sleeper.waiter.party.process != process)
        self._interrupted = {key: depth for key, depth in self._interrupted.items() if key[0] != process}
        return self._withdraw(
            [claim for claim in self._awake if claim.waiter.party.process == process and not claim.granted]
        )

    # The plain form; see `recorded.py`

    @property
    def resting(self) -> tuple[int, int, int] | None:
        """Nothing that is to be kept; None while calls wait, or have been interrupted."""
        is_at_rest = not (self._sleepers or self._interrupted or self._claiming())
        return (0, 0, 0) if is_at_rest else None

    def plain(self) -> tuple[Any, ...]:
        """Return everything that is to be kept, as plain values; the claims are those of the lock."""
        sleepers = [(sleeper.waiter.key, sleeper.depth) for sleeper in self._sleepers]
        awake = [(self._lock.place_of(claim), told) for claim, told in self._claiming()]
        return sleepers, awake, list(self._interrupted.items())

    def restore(self, plain: tuple[Any, ...], waiters: Waiters) -> None:
        """Take the state from its plain form; that of the lock comes before."""
        sleepers, awake, interrupted = plain
        self._sleepers = deque(_Sleeper(waiters.waiter(key), depth) for key, depth in sleepers)
        self._awake = {self._lock.claim_at(place): told for place, told in awake}
        self._interrupted = dict(interrupted)

    def _claiming(self) -> list[tuple[LockClaim, bool]]:
        return [(claim, told) for claim, told in self._awake.items() if not claim.granted]

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
        """Withdraw claims that will not be granted, and wake other sleepers instead of those that were notified."""
        for claim in claims:
            self._lock.withdraw(claim)
        return self._wake(sum(self._awake.pop(claim) for claim in claims))
