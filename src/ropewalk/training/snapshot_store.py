"""The shelf on which a process keeps snapshots of others, so that they survive the death of whom they are of.

Of each worker it keeps two: while a new one is on its way to the shelves of all, only the
one before it is whole everywhere, and that is the one which a death in the middle leaves.

    worker 0 ──▶ shelves of 0 and 1   cut 40, cut 80        cut 80 is not whole: that of worker 1 has not come
    worker 1 ──▶ shelves of 1 and 0   cut 40                all go on from cut 40

The own shelf has it too: when the keeper dies, its worker is far beyond the cut.

A snapshot is known by the epoch that took it and by its cut: plans that follow each other count from 0 again. Epochs
that go on from it leave that name as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from ropewalk.pipeline.plans import PlanWorker
from ropewalk.pipeline.schedules.streams import Cut

#: Snapshots of each worker. No more are needed if a new one is begun only when all have the last.
NUM_KEPT = 2


class Snapshot(Protocol):
    """What a shelf knows of a snapshot (`WorkerSnapshot` is one)."""

    @property
    def worker(self) -> PlanWorker: ...
    @property
    def cut(self) -> Cut: ...
    @property
    def size_bytes(self) -> int: ...
    def release(self) -> None: ...
    def pin(self) -> None: ...


S = TypeVar("S", bound=Snapshot)


class SnapshotStore(Generic[S]):
    """Snapshots of other workers, the newest two of each; may be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The epoch that was begun last, and what it went on from: the epoch that took it, and its cut.
        self._epoch = 0
        self._basis: tuple[int, Cut] | None = None
        #: Of each worker, oldest first, the epochs in which they were taken and the snapshots.
        self._kept: dict[PlanWorker, list[tuple[int, S]]] = {}

    def put(self, epoch: int, snapshot: S) -> None:
        """Keep a whole snapshot; the oldest of its worker goes. One of the same epoch and cut is replaced.

        What an epoch that was given up sends late is not kept, as it would drive out what is wanted, unless it is what
        the present epoch goes on from.

        Args:
            epoch: that took it.
            snapshot: this shelf's own from now on.
        """
        worker = snapshot.worker
        with self._lock:
            if epoch < self._epoch and (epoch, snapshot.cut) != self._basis:
                snapshot.release()
                return
            self._forget(worker, lambda of, one: one is not snapshot and (of, one.cut) == (epoch, snapshot.cut))
            kept = [(of, one) for of, one in self._kept.get(worker, []) if one is not snapshot]
            # A copy of what the epoch goes on from may come later than what it took since.
            at = sum(of <= epoch for of, _ in kept)
            kept.insert(at, (epoch, snapshot))
            self._kept[worker] = kept
            if len(kept) > NUM_KEPT:
                self._forget(worker, lambda of, one: one is kept[0][1])
            newest = kept[-1][0]
            if [of for of, _ in kept[-NUM_KEPT:]] == [newest] * NUM_KEPT:
                # There is a second one that this epoch took, so all have the first, and nothing older is wanted.
                for other in list(self._kept):
                    self._forget(other, lambda of, one: of < newest)

    def contents(self) -> list[tuple[int, PlanWorker, Cut]]:
        """The epoch, worker and cut of all that is here."""
        with self._lock:
            return [(epoch, worker, one.cut) for worker, kept in self._kept.items() for epoch, one in kept]

    def get(self, worker: PlanWorker, cut: Cut, epoch: int, *, to_send: bool = False) -> S:
        """The snapshot of a worker at a cut that an epoch took.

        Args:
            worker: of which.
            cut: where.
            epoch: that took it.
            to_send: whether it leaves this process: its memory is not used again then, when it is released.

        Raises:
            KeyError: it is not here; says what is.
        """
        with self._lock:
            kept = self._kept.get(worker, [])
            for of, one in kept:
                if (of, one.cut) == (epoch, cut):
                    if to_send:
                        one.pin()
                    return one
        there = ", ".join(f"{one.cut} of epoch {of}" for of, one in kept) or "none"
        raise KeyError(f"of worker {worker} there is no snapshot at {cut} of epoch {epoch} here; there are: {there}")

    def begin(self, epoch: int, basis: tuple[int, Cut] | None) -> None:
        """A new epoch goes on from a cut, or not from snapshots: let go of all others, of former workers too.

        Without it a cut that never became whole would take the place of this one when the next comes.

        Args:
            epoch: the new one.
            basis: the epoch that took the snapshots it goes on from, and their cut; None: it goes on from none.
        """
        with self._lock:
            self._epoch, self._basis = epoch, basis
            for worker in list(self._kept):
                # What others took in it may have come before this was said.
                self._forget(worker, lambda of, one: (of, one.cut) != basis and of != epoch)

    def _forget(self, worker: PlanWorker, is_unwanted: Callable[[int, S], bool]) -> None:
        left: list[tuple[int, S]] = []
        for epoch, one in self._kept.pop(worker, []):
            if is_unwanted(epoch, one):
                one.release()
            else:
                left.append((epoch, one))
        if left:
            self._kept[worker] = left

    @property
    def size_bytes(self) -> int:
        """The memory of all that is here."""
        with self._lock:
            return sum(one.size_bytes for kept in self._kept.values() for _, one in kept)
