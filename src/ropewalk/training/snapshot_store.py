"""The store in which a process keeps snapshots of other workers, so that they survive the death of those workers.

It keeps two of each worker: while a new one is being sent to all stores, only the previous
one is whole everywhere, and recovery from a death in the meantime uses that one.

    worker 0 ──▶ stores of 0 and 1   cut 40, cut 80        cut 80 is not whole: that of worker 1 is missing
    worker 1 ──▶ stores of 1 and 0   cut 40                all go on from cut 40

A worker's own store has it too: when the keeper dies, its worker is far beyond the cut.

A snapshot is identified by the epoch that took it and by its cut, because each plan counts from 0. Epochs that go on
from it leave that name as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from ropewalk.pipeline.plans import PlanWorker
from ropewalk.pipeline.schedules.streams import Cut

NUM_KEPT = 2
"""Snapshots kept of each worker. Two are enough if a new one is begun only when all keepers have the last."""


class Snapshot(Protocol):
    """The properties of a snapshot that the store uses (`WorkerSnapshot` is one)."""

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
        self._epoch = 0
        """The newest epoch, and the snapshots it went on from: the epoch that took them, and their cut."""
        self._basis: tuple[int, Cut] | None = None
        self._kept: dict[PlanWorker, list[tuple[int, S]]] = {}
        """Of each worker, oldest first, the snapshots and the epochs that took them."""

    def put(self, epoch: int, snapshot: S) -> None:
        """Keep a whole snapshot; the oldest of its worker is dropped. One of the same epoch and cut is replaced.

        A late snapshot of an aborted epoch is not kept, because it would displace a needed one, unless it is the one
        that the present epoch goes on from.

        Args:
            epoch: the epoch that took it.
            snapshot: owned by this store from now on.
        """
        worker = snapshot.worker
        with self._lock:
            if epoch < self._epoch and (epoch, snapshot.cut) != self._basis:
                snapshot.release()
                return
            self._forget(worker, lambda of, one: one is not snapshot and (of, one.cut) == (epoch, snapshot.cut))
            kept = [(of, one) for of, one in self._kept.get(worker, []) if one is not snapshot]
            # A copy of the snapshot that the epoch goes on from may arrive later than those it took since.
            at = sum(of <= epoch for of, _ in kept)
            kept.insert(at, (epoch, snapshot))
            self._kept[worker] = kept
            if len(kept) > NUM_KEPT:
                self._forget(worker, lambda of, one: one is kept[0][1])
            newest = kept[-1][0]
            if [of for of, _ in kept[-NUM_KEPT:]] == [newest] * NUM_KEPT:
                # This is the epoch's second snapshot, so all keepers have the first, and older ones are not needed.
                for other in list(self._kept):
                    self._forget(other, lambda of, one: of < newest)

    def contents(self) -> list[tuple[int, PlanWorker, Cut]]:
        """Return the epoch, worker and cut of every snapshot here."""
        with self._lock:
            return [(epoch, worker, one.cut) for worker, kept in self._kept.items() for epoch, one in kept]

    def get(self, worker: PlanWorker, cut: Cut, epoch: int, *, to_send: bool = False) -> S:
        """Return the snapshot of a worker at a cut.

        Args:
            worker: the worker that it is of.
            cut: the cut at which it was taken.
            epoch: the epoch that took it.
            to_send: whether it is sent to another process: then its memory is not reused when it is released.

        Raises:
            KeyError: the snapshot is not here; lists those that are.
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
        """Begin an epoch that goes on from a cut, or not from snapshots; drops all others, those of former workers too.

        Otherwise, a cut that never became whole would displace this one when the next arrives.

        Args:
            epoch: the new epoch.
            basis: the epoch that took the snapshots it goes on from, and their cut; None: it goes on from none.
        """
        with self._lock:
            self._epoch, self._basis = epoch, basis
            for worker in list(self._kept):
                # Snapshots that other workers took in this epoch may have arrived before this call.
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
        """The memory of all snapshots here, in bytes."""
        with self._lock:
            return sum(one.size_bytes for kept in self._kept.values() for _, one in kept)
