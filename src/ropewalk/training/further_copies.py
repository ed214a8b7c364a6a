"""A copy of the newest snapshots besides those of the processes: in the launcher's memory, or in files.

    all snapshots of a cut have reached their keepers ──▶ the launcher fetches them ──▶ the cut is whole

With it, training survives any simultaneous deaths. Copies that peers keep are used first, because they are nearer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Literal

from ropewalk.pipeline.plans import PlanWorker
from ropewalk.pipeline.schedules.streams import Cut
from ropewalk.pipeline.stages.snapshots import WorkerSnapshot
from ropewalk.training.assignment import PeerSnapshot
from ropewalk.training.stored_snapshots import SnapshotFolder, StoredSnapshot

logger = logging.getLogger(__name__)

AUTO_BYTES = 32 << 20
""""auto": with the launcher, if the snapshots of all workers together are not larger: fetching them then takes about as
long as taking them, some 20 ms."""

Where = Literal["auto", "launcher"] | Path | None
"""The trainer's setting: "auto", "launcher", a folder, or None for no further copy."""


class FurtherCopies:
    """The further copies of one trainer.

    Args:
        where: the trainer's setting.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, where: Where) -> None:
        self._where = where
        self._folder = SnapshotFolder(where) if isinstance(where, Path) else None
        self.newest: dict[PlanWorker, WorkerSnapshot | StoredSnapshot] = {}
        """The copies of the newest whole cut; a worker whose snapshot could not be fetched is missing."""
        self._fetching: tuple[Cut, dict[PlanWorker, Future[WorkerSnapshot]]] | None = None

    @property
    def folder(self) -> str | None:
        """The folder in which the processes write their snapshots; None: they do not."""
        return None if self._folder is None else str(self._folder.path)

    @property
    def place(self) -> str:
        """Where the newest copies are, in words: "launcher", the folder, or "" for nowhere."""
        newest = list(self.newest.values())
        if any(isinstance(one, WorkerSnapshot) for one in newest):
            return "launcher"
        return str(self._where) if newest else ""

    def are_here(
        self,
        cut: Cut,
        kept: Mapping[PlanWorker, PeerSnapshot],
        fetch: Callable[[int, PlanWorker], Future[WorkerSnapshot]],
        *,
        is_alone: bool,
    ) -> bool:
        """Return whether all copies of a cut that belong here are here; the first call starts fetching them.

        Args:
            cut: a cut of which peers keep all snapshots.
            kept: the keeper and file of each worker's snapshot.
            fetch: asks the process at a seat for the snapshot of a worker.
            is_alone: whether there is only one process, so that no peer keeps its snapshots.
        """
        wanted = self._where == "launcher" or (
            self._where == "auto" and (is_alone or sum(one.size_bytes for one in kept.values()) <= AUTO_BYTES)
        )
        if not wanted:
            return True
        if self._fetching is None or self._fetching[0] != cut:
            self._fetching = cut, {worker: fetch(one.keeper, worker) for worker, one in kept.items()}
        return all(future.done() for future in self._fetching[1].values())

    def became_whole(self, cut: Cut, kept: Mapping[PlanWorker, PeerSnapshot]) -> None:
        """Record that training goes on from this cut from now on; copies of the previous one are dropped."""
        self.newest = {worker: one.stored for worker, one in kept.items() if one.stored is not None}
        if self._fetching is not None and self._fetching[0] == cut:
            for worker, future in self._fetching[1].items():
                if (error := future.exception()) is None:
                    self.newest[worker] = future.result()
                else:  # its keeper is gone; training uses the remaining copies of this cut
                    logger.warning("the launcher could not get the snapshot of worker %s: %s", worker, error)
        self._fetching = None
        if self._folder is not None:
            self._folder.keep_only([one for one in self.newest.values() if isinstance(one, StoredSnapshot)])

    def restarted(self) -> None:
        """Forget a cut that was not whole: it will not become so."""
        self._fetching = None

    def clear(self) -> None:
        """Drop all copies: training goes on from another state."""
        self.newest, self._fetching = {}, None

    def close(self) -> None:
        """Drop all copies and remove the folder; may be called twice."""
        self.clear()
        if self._folder is not None:
            self._folder.close()
