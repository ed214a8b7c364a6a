"""A copy of the newest snapshots beside those of the processes: in the launcher's memory, or in files.

    all have brought their snapshots of a cut to their keepers ──▶ the launcher fetches them ──▶ the cut is whole

With it training survives the deaths of any processes at once. What peers keep is used first: it is nearer.
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

log = logging.getLogger(__name__)

#: "auto": with the launcher, if the snapshots of all workers together are not larger: fetching them takes about as long
#: as taking them, some 20 ms.
AUTO_BYTES = 32 << 20

#: What a trainer is told: "auto", "launcher", a folder, or None for no further copy.
Where = Literal["auto", "launcher"] | Path | None


class FurtherCopies:
    """The copies of one trainer.

    Args:
        where: they are.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, where: Where) -> None:
        self._where = where
        self._folder = SnapshotFolder(where) if isinstance(where, Path) else None
        #: Those of the newest whole cut; none of a worker whose snapshot could not be had.
        self.newest: dict[PlanWorker, WorkerSnapshot | StoredSnapshot] = {}
        self._fetching: tuple[Cut, dict[PlanWorker, Future[WorkerSnapshot]]] | None = None

    @property
    def folder(self) -> str | None:
        """Where the processes write theirs; None: they do not."""
        return None if self._folder is None else str(self._folder.path)

    def are_here(
        self,
        cut: Cut,
        kept: Mapping[PlanWorker, PeerSnapshot],
        fetch: Callable[[int, PlanWorker], Future[WorkerSnapshot]],
        *,
        is_alone: bool,
    ) -> bool:
        """Whether all that is to be here of a cut is; begins to fetch it at the first question.

        Args:
            cut: of which peers keep all snapshots.
            kept: by worker, what is known of its snapshot.
            fetch: asks the process at a seat for the snapshot of a worker.
            is_alone: whether there is one process only, so that nobody keeps them beside.
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
        """Training goes on from this cut from now on: those of the one before are let go."""
        self.newest = {worker: one.stored for worker, one in kept.items() if one.stored is not None}
        if self._fetching is not None and self._fetching[0] == cut:
            for worker, future in self._fetching[1].items():
                if (error := future.exception()) is None:
                    self.newest[worker] = future.result()
                else:  # its keeper is gone, and then all go on from this cut with what others keep
                    log.warning("the launcher could not get the snapshot of worker %s: %s", worker, error)
        self._fetching = None
        if self._folder is not None:
            self._folder.keep_only([one for one in self.newest.values() if isinstance(one, StoredSnapshot)])

    def restarted(self) -> None:
        """A cut that was not whole will not become so."""
        self._fetching = None

    def clear(self) -> None:
        """Training goes on from elsewhere."""
        self.newest, self._fetching = {}, None

    def close(self) -> None:
        """Nothing is needed any more; may be called twice."""
        self.clear()
        if self._folder is not None:
            self._folder.close()
