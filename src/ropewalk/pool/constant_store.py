"""The constants of a pool, wherever they are: in this process, in blobs on hosts, and at workers.

`KeptConstants` decides which are forgotten; `ConstantStore` forgets them everywhere. The next map often needs what the
last one needed (the code of a generation, weights that have not changed), so a constant is not forgotten with its last
task: all that are in use are kept, and the newest of the others up to a limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ropewalk.pool.chunking import Pace
from ropewalk.pool.constants import Constant
from ropewalk.pool.remote_worker import RemoteWorker
from ropewalk.processes.blob_directory import BlobDirectory
from ropewalk.processes.owner import Owner

MAX_CONSTANTS = 64
"""Number and bytes of all constants together above which those that no task needs are forgotten."""
MAX_BYTES = 128 << 20


class KeptConstants:
    """Constants by the hash of their content, each with the number of tasks and callers that hold it. Pure."""

    def __init__(self) -> None:
        self._constants: dict[str, Constant] = {}
        self._size_bytes = 0

    def __iter__(self) -> Iterator[Constant]:
        return iter(self._constants.values())

    def get(self, id: str) -> Constant | None:
        """Return the constant with this hash, or None if it is not kept."""
        return self._constants.get(id)

    def use(self, constant: Constant) -> None:
        """Count one more holder of a constant."""
        constant.users += 1
        if constant.id not in self._constants:
            self._constants[constant.id] = constant
            self._size_bytes += constant.size_bytes

    def unuse(self, constant: Constant) -> None:
        """Count one holder less; the constant stays while there is room."""
        constant.users -= 1

    def crowded_out(self) -> list[Constant]:
        """Remove constants above the limits, the oldest that nothing holds first; the caller frees their memory."""
        removed: list[Constant] = []
        if self._fits():
            return removed
        for constant in [constant for constant in self._constants.values() if not constant.users]:
            if self._fits():
                break
            self._size_bytes -= constant.size_bytes
            removed.append(self._constants.pop(constant.id))
        return removed

    def _fits(self) -> bool:
        return len(self._constants) <= MAX_CONSTANTS and self._size_bytes <= MAX_BYTES


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
        self._of_workers: list[Constant] = []
        """What new workers begin with; it does not count among those that tasks may need again."""

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

    def hold_to_the_end(self, *constants: Constant | None) -> None:
        """Keep what new workers begin with until `close`."""
        self._of_workers += [constant for constant in constants if constant]

    def close(self) -> None:
        """Free the memory of all constants, after all workers are gone."""
        for constant in (*self._kept, *self._of_workers):
            self._blobs.drop(constant.id, self._owner)
            constant.close()
        self._kept, self._of_workers = KeptConstants(), []

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
