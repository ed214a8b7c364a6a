"""What `multiprocessing.current_process()` and `parent_process()` say in a worker: which one it is, and whose.

Programs number what they do by `current_process()._identity`, or by the end of its name, and find out by the parent
whether they are the main process.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
from multiprocessing import process
from typing import Any

from ropewalk.transport.kernel import open_process

_process: Any = process  # the stubs do not know these


def next_identity() -> tuple[int, ...]:
    """The numbers of a worker that is made now: of its parent, and its own among all processes and workers of that."""
    current: Any = multiprocessing.current_process()
    return (*current._identity, next(_process._process_counter))


def take_identity(identity: tuple[int, ...], parent_name: str, parent_pid: int, authkey: bytes) -> None:
    """Be such a worker.

    Args:
        identity: as `next_identity` gave it.
        parent_name: what the process that has made it is called.
        parent_pid: its process id, on its own host.
        authkey: of that process.
    """
    current: Any = multiprocessing.current_process()
    current._identity = identity
    current.name = f"SpawnPoolWorker-{':'.join(map(str, identity))}"  # as those of multiprocessing
    current.authkey = authkey
    _process._parent_process = _Parent(parent_name, parent_pid)
    _process._process_counter = itertools.count(1)


class _Parent(_process._ParentProcess):  # pyright: ignore[reportUntypedBaseClass]
    """The process that has made the pool. A worker ends with its agent, and that with this process."""

    def __init__(self, name: str, pid: int) -> None:
        _process._ParentProcess.__init__(self, name, pid, None)
        self._end: int | None = None

    @property
    def _sentinel(self) -> int:
        """Can be read when the agent has ended; opened when somebody asks."""
        if self._end is None:
            end = open_process(os.getppid())
            self._end = os.pipe()[0] if end is None else end  # nobody can wait for longer than the agent lives
        return self._end

    @_sentinel.setter
    def _sentinel(self, _: object) -> None:
        pass


__all__ = ["next_identity", "take_identity"]
