"""The replicator: sends snapshots to the peers that keep them, and writes them to files if asked, in its own thread."""

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
    """A snapshot to be sent."""

    seat: int
    """The seat of the keeper."""
    epoch: int
    snapshot: WorkerSnapshot
    took_s: float
    """Seconds for which taking it held up computing."""
    folder: str | None = None
    """The folder to which it is also written; None: none."""


class Replicator:
    """Sends snapshots one after the other; a snapshot that cannot be sent is left out, and the next one is tried.

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
        """Queue a snapshot to be sent; returns immediately."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ropewalk-replicator", daemon=True)
            self._thread.start()
        self._errands.put(errand)

    def delivered(self, epoch: int) -> tuple[PeerSnapshot, ...]:
        """Return what has arrived since the last call, without earlier epochs, whose keepers drop their snapshots."""
        found: list[PeerSnapshot] = []
        while not self._delivered.empty():
            of_epoch, kept = self._delivered.get()
            if of_epoch == epoch:
                found.append(kept)
        return tuple(found)

    def failed(self, epoch: int) -> tuple[str, ...]:
        """Return why snapshots could not be sent or written, since the last call."""
        found: list[str] = []
        while not self._failed.empty():
            of_epoch, why = self._failed.get()
            if of_epoch == epoch:
                found.append(why)
        return tuple(found)

    def close(self) -> None:
        """Send no more snapshots; may be called twice."""
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
                    except OSError as error:  # a peer keeps it at least
                        self._failed.put((epoch, f"a snapshot could not be written to {folder}: {error}"))
                brought.result()
                self._delivered.put((epoch, PeerSnapshot(snapshot.cut, took_s, snapshot.size_bytes, seat, stored)))
            except Exception as error:  # the keeper is gone; the controller learns of it, and requests another snapshot
                self._failed.put((epoch, f"a snapshot could not be brought to its keeper: {error}"))
