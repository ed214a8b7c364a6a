"""A courier brings snapshots to the peer that keeps them, in a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ropewalk.pipeline.stages.snapshots import WorkerSnapshot
from ropewalk.training.assignment import Kept

#: What a courier is given: the seat of the keeper, the epoch, the snapshot, and how long it took to make.
_Errand = tuple[int, int, WorkerSnapshot, float]


class Courier:
    """Sends snapshots one after the other; one that cannot be brought is left out, and the next one is not.

    Args:
        keep: calls the keeper at a seat, with an epoch and a snapshot.
    """

    def __init__(self, keep: Callable[[int, int, WorkerSnapshot], Future[Any]]) -> None:
        self._keep = keep
        self._errands: queue.SimpleQueue[_Errand | None] = queue.SimpleQueue()
        self._delivered: queue.SimpleQueue[tuple[int, Kept]] = queue.SimpleQueue()
        self._failed: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def bring(self, seat: int, epoch: int, snapshot: WorkerSnapshot, took_s: float) -> None:
        """Send a snapshot away; returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ropewalk-courier", daemon=True)
            self._thread.start()
        self._errands.put((seat, epoch, snapshot, took_s))

    def delivered(self, epoch: int) -> tuple[Kept, ...]:
        """What has arrived since this was last asked; not what an epoch before sent, whose keepers let go of it."""
        found: list[Kept] = []
        while not self._delivered.empty():
            of_epoch, kept = self._delivered.get()
            if of_epoch == epoch:
                found.append(kept)
        return tuple(found)

    def has_failed(self, epoch: int) -> bool:
        """Whether something could not be brought since this was last asked."""
        failed = False
        while not self._failed.empty():
            failed |= self._failed.get() == epoch
        return failed

    def close(self) -> None:
        """Send no more; may be called twice."""
        self._errands.put(None)

    def _run(self) -> None:
        while (errand := self._errands.get()) is not None:
            seat, epoch, snapshot, took_s = errand
            try:
                self._keep(seat, epoch, snapshot).result()
                self._delivered.put((epoch, Kept(snapshot.cut, took_s, snapshot.size_bytes)))
            except Exception:  # the keeper is gone; the controller hears of it, and has another snapshot taken
                self._failed.put(epoch)
