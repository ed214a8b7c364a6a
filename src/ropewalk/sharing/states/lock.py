"""A lock: one thread of one process owns it, the others stand in line with their claims.

    acquire ─▶ claims: C3 C2 C1 ─▶ owner (process, thread), depth ─▶ release
                                       │ lent: until it has heard of it, it may still give up

A lock whose owner's process dies is free again. What it guarded may be half done, so that this happened is on record,
and told to whoever has the lock next.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from ropewalk.sharing.states.waiting import CallOutcome, Party, Waiter


@dataclass(slots=True, eq=False)
class LockClaim:
    """What a call wants of a lock, and what it ends with when it has it."""

    waiter: Waiter

    depth: int = 1
    """How often it owns the lock then: a condition restores what it had released."""

    value: bool = True
    """What the call returns; a condition's wait that timed out returns False, but not without its lock."""

    lent: bool = False
    """Whether it may still be given up when it has been granted."""

    granted: bool = False


class LockState:
    """What `multiprocessing.Lock` and `RLock` do.

    Args:
        recursive: whether the owner may acquire it again, and nobody else release it (RLock).
    """

    METHODS: ClassVar = frozenset({"acquire", "release", "locked", "holder", "standing"})
    SEALED: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, recursive: bool = False) -> None:
        self.abandoned: list[str] = []
        """Each time that an owner died: "held by NAME, which is gone"."""
        self._recursive = recursive
        self._owner: Party | None = None
        self._depth = 0
        self._claims: deque[LockClaim] = deque()
        self._lent: Waiter | None = None  # The acquire of the owner, until it has heard of it.
        self._untold: list[str] = []

    def acquire(self, waiter: Waiter) -> list[CallOutcome]:
        """Own the lock, when it is free: True, or False when the time is over.

        True is a text instead if the owner before died with it: the record of that.
        """
        if self._recursive and self.owned_by(waiter.party):
            self._depth += 1
            self._lent = waiter
            return [CallOutcome(waiter, True, lent=True)]
        return self.claim(LockClaim(waiter, lent=True))

    def release(self, waiter: Waiter) -> list[CallOutcome]:
        """Own the lock once less. Anybody may release a plain lock that somebody owns, or died with."""
        if self._recursive and not self.owned_by(waiter.party):
            error = AssertionError("attempt to release recursive lock not owned by thread")
            return [CallOutcome(waiter, error=error)]
        if self._owner is None and self._untold and not self._recursive:
            self._untold.pop()  # it is meant for the dead one: with multiprocessing the lock would still be held
            return [CallOutcome(waiter)]
        if self._owner is None:
            return [CallOutcome(waiter, error=ValueError("semaphore or lock released too many times"))]
        return [CallOutcome(waiter), *self._release()]

    def locked(self, waiter: Waiter) -> list[CallOutcome]:
        """Say whether anybody owns it."""
        return [CallOutcome(waiter, self._owner is not None)]

    def holder(self, waiter: Waiter) -> list[CallOutcome]:
        """Name the owner for people; "" if nobody owns it."""
        return [CallOutcome(waiter, "" if self._owner is None else self._owner.name)]

    def standing(self, waiter: Waiter) -> list[CallOutcome]:
        """Say who owns it, seen from the caller ("nobody", "me", "other thread", "other process"), and how often."""
        if self._owner is None:
            who = "nobody"
        elif self.owned_by(waiter.party):
            who = "me"
        else:
            who = "other thread" if self._owner.process == waiter.party.process else "other process"
        return [CallOutcome(waiter, (who, self._depth))]

    def give_up(self, waiter: Waiter, timed_out: bool) -> list[CallOutcome]:
        """End an acquire without the lock, or take the lock back that it has not heard of."""
        if waiter is self._lent:
            return self._release()
        claim = next((claim for claim in self._claims if claim.waiter is waiter), None)
        if claim is None:
            return []
        self.withdraw(claim)
        return [CallOutcome(waiter, False)] if timed_out else []

    def taken(self, waiter: Waiter) -> list[CallOutcome]:
        """Know that the owner has heard of its lock."""
        if waiter is self._lent:
            self._lent = None
        return []

    def party_gone(self, process: str, name: str) -> list[CallOutcome]:
        """Forget the claims of this process, and release the lock if it is its."""
        self._claims = deque(claim for claim in self._claims if claim.waiter.party.process != process)
        if self._owner is None or self._owner.process != process:
            return []
        record = f"held by {name}, which is gone"
        self.abandoned.append(record)
        self._untold.append(record)
        return self.free()

    # What conditions ask of their lock.

    @property
    def depth(self) -> int:
        """How often its owner owns it; 0 if nobody does."""
        return self._depth

    def owned_by(self, party: Party) -> bool:
        """Say whether this thread owns it."""
        return self._owner == party

    def claim(self, claim: LockClaim) -> list[CallOutcome]:
        """Stand in line for the lock; the call ends when it has it."""
        self._claims.append(claim)
        return self._grant()

    def withdraw(self, claim: LockClaim) -> None:
        """Leave the line; passed over if it does not stand there."""
        if claim in self._claims:
            self._claims.remove(claim)

    def free(self) -> list[CallOutcome]:
        """Take the lock from its owner, however often it owns it, and give it to the next in line."""
        self._owner = self._lent = None
        self._depth = 0
        return self._grant()

    def _release(self) -> list[CallOutcome]:
        self._depth -= 1
        return self.free() if self._depth == 0 else []

    def _grant(self) -> list[CallOutcome]:
        if self._owner is not None or not self._claims:
            return []
        claim = self._claims.popleft()
        claim.granted = True
        self._owner = claim.waiter.party
        self._depth = claim.depth
        self._lent = claim.waiter if claim.lent else None
        value: bool | str = claim.value
        if value and self._untold:
            value = "; ".join(self._untold)
            self._untold.clear()
        return [CallOutcome(claim.waiter, value, lent=claim.lent)]
