"""The constants of a pool, wherever they are: in this process, in blobs on hosts, and at workers.

`KeptConstants` decides which are forgotten; this forgets them everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ropewalk.pool.chunking import Pace
from ropewalk.pool.constants import Constant
from ropewalk.pool.kept_constants import KeptConstants
from ropewalk.pool.remote_worker import RemoteWorker
from ropewalk.processes.blob_directory import BlobDirectory
from ropewalk.processes.owner import Owner


class ConstantStore:
    """The constants of one pool; the caller holds the pool's lock.

    Args:
        blobs: the blobs on the hosts of the session.
        owner: the owner of the workers' processes, under whose name blobs are held.
        workers: the workers, by their ids.
        pace: what is known of the durations of tasks, by the id of their constant.
    """

    def __init__(self, blobs: BlobDirectory, owner: Owner, workers: Mapping[str, RemoteWorker], pace: Pace) -> None:
        self._blobs = blobs
        self._owner = owner
        self._workers = workers
        self._pace = pace
        self._kept = KeptConstants()

    def __iter__(self) -> Iterator[Constant]:
        return iter(self._kept)

    def use(self, constants: Sequence[Constant]) -> None:
        """Count one more holder of each constant."""
        for constant in constants:
            self._kept.use(constant)

    def let_go(self, constants: Sequence[Constant]) -> None:
        """Count one holder less of each constant; what is above the limits and has no holder is forgotten."""
        for constant in constants:
            self._kept.unuse(constant)
        self._forget_crowded_out()

    def hold(self, constant: Constant) -> Constant:
        """Count one more holder of a constant, or of the one of the same content that is here already; return it."""
        known = self._kept.get(constant.id)
        if known is not None and known is not constant:
            constant.close()
            constant = known
        self._kept.use(constant)
        self._forget_crowded_out()
        return constant

    def hold_known(self, id: str) -> Constant | None:
        """Count one more holder of the constant with this hash, and return it; None if it is not here."""
        constant = self._kept.get(id)
        if constant:
            self._kept.use(constant)
        return constant

    def close(self) -> None:
        """Free the memory of all constants, after all workers are gone."""
        for constant in self._kept:
            self._blobs.drop(constant.id, self._owner)
            constant.close()
        self._kept = KeptConstants()

    def _forget_crowded_out(self) -> None:
        removed = self._kept.crowded_out()
        if not removed:
            return
        for constant in removed:
            self._pace.forget(constant.id)
            if constant.blob:
                self._blobs.drop(constant.id, self._owner)
            constant.close()
        for worker in self._workers.values():
            worker.forget(removed)
