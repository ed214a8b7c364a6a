"""A lock: one thread of one process owns it, and the claims of the others are queued.

    acquire ─▶ claims: C3 C2 C1 ─▶ owner (process, thread), depth ─▶ release
                                       │ lent: until the answer has arrived, the lock can come back

A lock whose owner's process dies becomes free. The data that it guarded may be in an inconsistent state, so the death
is recorded, and reported to the next owner.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar

from ropewalk.sharing.states.waiting import CallOutcome, Party, Waiter, Waiters


@dataclass(slots=True, eq=False)
class LockClaim:
    """The claim of a call on a lock, and the call's outcome when the claim is granted."""

    waiter: Waiter

    depth: int = 1
    """How many times it then owns the lock: a condition restores the number that it had released."""

    value: bool = True
    """The result of the call; a condition's wait that timed out returns False, but only with its lock."""

    lent: bool = False
    """Whether it may still be given up after it was granted."""

    granted: bool = False


class LockState:
    """The state of a `multiprocessing.Lock` or `RLock`.

    Args:
        recursive: whether the owner may acquire it again, and no other thread may release it (RLock).
    """

    METHODS: ClassVar = frozenset({"acquire", "release", "locked", "holder", "standing"})
    SEALED: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, recursive: bool = False) -> None:
        self.abandoned: list[str] = []
        """An entry for each owner that died: "held by NAME, which is gone"."""
        self._recursive = recursive
        self._owner: Party | None = None
        self._depth = 0
        self._claims: deque[LockClaim] = deque()
        self._lent: Waiter | None = None  # The owner's acquire, until its answer has arrived.
        self._untold: list[str] = []

    def acquire(self, waiter: Waiter) -> list[CallOutcome]:
        """Acquire the lock when it is free: True, or False on a timeout.

        True is replaced by a text if the previous owner died with it: the record of that.
        """
        if self._recursive and self.owned_by(waiter.party):
            self._depth += 1
            self._lent = waiter
            return [CallOutcome(waiter, True, lent=True)]
        return self.claim(LockClaim(waiter, lent=True))

    def release(self, waiter: Waiter) -> list[CallOutcome]:
        """Release the lock once. Any thread may release a plain lock that is owned, or whose owner died."""
        if self._recursive and not self.owned_by(waiter.party):
            error = AssertionError("attempt to release recursive lock not owned by thread")
            return [CallOutcome(waiter, error=error)]
        if self._owner is None and self._untold and not self._recursive:
            self._untold.pop()  # meant for the dead owner: in multiprocessing the lock would still be held
            return [CallOutcome(waiter)]
        if self._owner is None:
            return [CallOutcome(waiter, error=ValueError("semaphore or lock released too many times"))]
        return [CallOutcome(waiter), *self._release()]

    def locked(self, waiter: Waiter) -> list[CallOutcome]:
        """Return whether it has an owner."""
        return [CallOutcome(waiter, self._owner is not None)]

    def holder(self, waiter: Waiter) -> list[CallOutcome]:
        """Return the owner's name for messages; "" if there is none."""
        return [CallOutcome(waiter, "" if self._owner is None else self._owner.name)]

    def standing(self, waiter: Waiter) -> list[CallOutcome]:
        """Return the owner as the caller sees it ("nobody", "me", "other thread", "other process"), and its depth."""
        if self._owner is None:
            who = "nobody"
        elif self.owned_by(waiter.party):
            who = "me"
        else:
            who = "other thread" if self._owner.process == waiter.party.process else "other process"
        return [CallOutcome(waiter, (who, self._depth))]

    def give_up(self, waiter: Waiter, timed_out: bool) -> list[CallOutcome]:
        """End an acquire without the lock, or take back the lock if the answer has not arrived."""
        if waiter is self._lent:
            return self._release()
        claim = next((claim for claim in self._claims if claim.waiter is waiter), None)
        if claim is None:
            return []
        self.withdraw(claim)
        return [CallOutcome(waiter, False)] if timed_out else []

    def taken(self, waiter: Waiter) -> list[CallOutcome]:
        """Record that the owner has its answer."""
        if waiter is self._lent:
            self._lent = None
        return []

    def party_gone(self, process: str, name: str) -> list[CallOutcome]:
        """Forget the claims of this process, and release the lock if it owns it."""
        self._claims = deque(claim for claim in self._claims if claim.waiter.party.process != process)
        if self._owner is None or self._owner.process != process:
            return []
        record = f"held by {name}, which is gone"
        self.abandoned.append(record)
        self._untold.append(record)
        return self.free()

    # The plain form; see `recorded.py`

    @property
    def resting(self) -> tuple[int, int, int] | None:
        """The number and thread of its owner (0: none) and its depth; None while calls wait, or something is untold."""
        if self._claims or self._lent or self._untold:
            return None
        return (int(self._owner.process), self._owner.thread, self._depth) if self._owner else (0, 0, 0)

    def rest(self, process: int, thread: int, depth: int, waiters: Waiters) -> None:
        """Take the state from its plain form at rest."""
        self._owner, self._depth = (waiters.party(process, thread), depth) if process else (None, 0)

    def plain(self) -> tuple[Any, ...]:
        """Return everything that is to be kept, as plain values."""
        owner = (int(self._owner.process), self._owner.thread) if self._owner else None
        claims = [(claim.waiter.key, claim.depth, claim.value, claim.lent) for claim in self._claims]
        return owner, self._depth, self._lent and self._lent.key, self._untold, claims

    def restore(self, plain: tuple[Any, ...], waiters: Waiters) -> None:
        """Take the state from its plain form."""
        owner, self._depth, lent, self._untold, claims = plain
        self._owner = waiters.party(*owner) if owner else None
        self._lent = waiters.waiter(lent) if lent else None
        self._claims = deque(LockClaim(waiters.waiter(key), *rest) for key, *rest in claims)

    def place_of(self, claim: LockClaim) -> int:
        """Return the place of a claim in the queue."""
        return self._claims.index(claim)

    def claim_at(self, place: int) -> LockClaim:
        """Return the claim at a place of the queue."""
        return self._claims[place]

    # Methods for conditions.

    @property
    def depth(self) -> int:
        """How many times its owner has acquired it; 0 if there is no owner."""
        return self._depth

    def owned_by(self, party: Party) -> bool:
        """Return whether this thread owns it."""
        return self._owner == party

    def claim(self, claim: LockClaim) -> list[CallOutcome]:
        """Queue a claim; the call ends when it is granted."""
        self._claims.append(claim)
        return self._grant()

    def withdraw(self, claim: LockClaim) -> None:
        """Remove a claim from the queue; ignored if it is not there."""
        if claim in self._claims:
            self._claims.remove(claim)

    def free(self) -> list[CallOutcome]:
        """Take the lock from its owner, whatever its depth, and grant the next claim."""
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
