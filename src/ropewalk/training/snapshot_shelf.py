"""The shelf on which a process keeps snapshots of others, so that they survive the death of whom they are of.

Of each worker it keeps two: while a new one is on its way to the shelves of all, only the
one before it is whole everywhere, and that is the one which a death in the middle leaves.

    worker 0 ──▶ shelves of 0 and 1   cut 40, cut 80        cut 80 is not whole: that of worker 1 has not come
    worker 1 ──▶ shelves of 1 and 0   cut 40                all go on from cut 40

The own shelf has it too: when the keeper dies, its worker is far beyond the cut.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Generic, Protocol, TypeVar

from ropewalk.pipeline.plans import Worker
from ropewalk.pipeline.schedules.streams import Cut

#: Snapshots of each worker. No more are needed if a new one is begun only when all have the last.
NUM_KEPT = 2


class Snapshot(Protocol):
    """What a shelf knows of a snapshot (`WorkerSnapshot` is one)."""

    @property
    def worker(self) -> Worker: ...
    @property
    def cut(self) -> Cut: ...
    @property
    def size_bytes(self) -> int: ...
    def release(self) -> None: ...


S = TypeVar("S", bound=Snapshot)


class SnapshotShelf(Generic[S]):
    """Snapshots of other workers, the newest two of each; may be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The epoch that was begun last, and the cut that it went on from.
        self._epoch = 0
        self._cut: Cut | None = None
        #: Of each worker, oldest first, the epochs in which they were taken and the snapshots.
        self._kept: dict[Worker, list[tuple[int, S]]] = {}

    def put(self, epoch: int, snapshot: S) -> None:
        """Keep a whole snapshot; the oldest of its worker goes. One of the same epoch and cut is replaced.

        What an epoch that was given up sends late is not kept: it would drive out what is wanted.
        """
        worker = snapshot.worker
        with self._lock:
            if epoch < self._epoch:
                snapshot.release()
                return
            self._forget(worker, lambda of, one: one is not snapshot and (of, one.cut) == (epoch, snapshot.cut))
            # One that a later epoch goes on from is here already, as of the epoch that took it.
            kept = [(of, one) for of, one in self._kept.get(worker, []) if one is not snapshot] + [(epoch, snapshot)]
            self._kept[worker] = kept
            if len(kept) > NUM_KEPT:
                self._forget(worker, lambda of, one: one is kept[0][1])
            if [of for of, one in kept[-NUM_KEPT:] if one.cut != self._cut] == [epoch] * NUM_KEPT:
                # There is a second one that this epoch took, so all have the first, and nothing older is wanted.
                for other in list(self._kept):
                    self._forget(other, lambda of, one: of < epoch)

    def contents(self) -> list[tuple[int, Worker, Cut]]:
        """The epoch, worker and cut of all that is here."""
        with self._lock:
            return [(epoch, worker, one.cut) for worker, kept in self._kept.items() for epoch, one in kept]

    def get(self, worker: Worker, cut: Cut, epochs: Collection[int] | None = None) -> S:
        """The snapshot of a worker at a cut, of the newest of these epochs that has one; None: of all.

        Raises:
            KeyError: it is not here; says what is.
        """
        with self._lock:
            kept = self._kept.get(worker, [])
            for of, one in reversed(kept):
                if one.cut == cut and (epochs is None or of in epochs):
                    return one
        there = ", ".join(str(one.cut) for _, one in kept) or "none"
        raise KeyError(f"of worker {worker} there is no snapshot at {cut} here; there are: {there}")

    def begin(self, epoch: int, cut: Cut | None, epochs: Collection[int] | None = None) -> None:
        """A new epoch goes on from this cut, or not from snapshots: let go of all others, of former workers too.

        Other plans count from 0 again, so the cut is the one of these epochs; None: of all.

        Without it a cut that never became whole would take the place of this one when the next comes.
        """
        with self._lock:
            self._epoch, self._cut = epoch, cut
            for worker in list(self._kept):
                self._forget(worker, lambda of, one: one.cut != cut or not (epochs is None or of in epochs))

    def _forget(self, worker: Worker, is_unwanted: Callable[[int, S], bool]) -> None:
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
