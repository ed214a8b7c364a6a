"""A courier brings snapshots to the peer that keeps them, and into files if that is asked for, in its own thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from ropewalk.pipeline.stages.snapshots import WorkerSnapshot
from ropewalk.training import stored_snapshots
from ropewalk.training.assignment import PeerSnapshot


class ReplicationJob(NamedTuple):
    """What a courier is given."""

    #: The keeper.
    seat: int
    epoch: int
    snapshot: WorkerSnapshot
    #: Seconds that taking it held up the computing.
    took_s: float
    #: Where it is written as well; None: nowhere.
    folder: str | None = None


class Replicator:
    """Sends snapshots one after the other; one that cannot be brought is left out, and the next one is not.

    Args:
        keep: calls the keeper at a seat, with an epoch and a snapshot.
    """

    def __init__(self, keep: Callable[[int, int, WorkerSnapshot], Future[Any]]) -> None:
        self._keep = keep
        self._errands: queue.SimpleQueue[ReplicationJob | None] = queue.SimpleQueue()
        self._delivered: queue.SimpleQueue[tuple[int, PeerSnapshot]] = queue.SimpleQueue()
        self._failed: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def bring(self, errand: ReplicationJob) -> None:
        """Send a snapshot away; returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ropewalk-courier", daemon=True)
            self._thread.start()
        self._errands.put(errand)

    def delivered(self, epoch: int) -> tuple[PeerSnapshot, ...]:
        """What has arrived since this was last asked; not what an epoch before sent, whose keepers let go of it."""
        found: list[PeerSnapshot] = []
        while not self._delivered.empty():
            of_epoch, kept = self._delivered.get()
            if of_epoch == epoch:
                found.append(kept)
        return tuple(found)

    def failed(self, epoch: int) -> tuple[str, ...]:
        """Why something could not be brought or written since this was last asked."""
        found: list[str] = []
        while not self._failed.empty():
            of_epoch, why = self._failed.get()
            if of_epoch == epoch:
                found.append(why)
        return tuple(found)

    def close(self) -> None:
        """Send no more; may be called twice."""
        self._errands.put(None)

    def _run(self) -> None:
        while (errand := self._errands.get()) is not None:
            seat, epoch, snapshot, took_s, folder = errand
            stored = None
            try:
                brought = self._keep(seat, epoch, snapshot)
                if folder is not None:
                    try:
                        stored = stored_snapshots.write(folder, epoch, snapshot)
                    except OSError as error:  # it lies with a peer at least
                        self._failed.put((epoch, f"a snapshot could not be written to {folder}: {error}"))
                brought.result()
                self._delivered.put((epoch, PeerSnapshot(snapshot.cut, took_s, snapshot.size_bytes, seat, stored)))
            except Exception as error:  # the keeper is gone; the controller hears of it, and has another snapshot taken
                self._failed.put((epoch, f"a snapshot could not be brought to its keeper: {error}"))
