"""What `multiprocessing.current_process()` and `parent_process()` return in a worker.

Programs number their work by `current_process()._identity`, or by the end of its name, and use the parent to find out
whether they are the main process.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
from multiprocessing import process
from typing import Any

from ropewalk.transport.kernel import open_process

_process: Any = process  # the stubs lack these names


def next_identity() -> tuple[int, ...]:
    """Return a new worker's identity: that of its parent, then its number among the parent's children."""
    current: Any = multiprocessing.current_process()
    return (*current._identity, next(_process._process_counter))


def take_identity(identity: tuple[int, ...], parent_name: str, parent_pid: int, authkey: bytes) -> None:
    """Take on the identity of a worker.

    Args:
        identity: as `next_identity` returned it.
        parent_name: name of the process that made the worker.
        parent_pid: process id of that process, on its own host.
        authkey: multiprocessing's key of that process.
    """
    current: Any = multiprocessing.current_process()
    current._identity = identity
    current.name = f"SpawnPoolWorker-{':'.join(map(str, identity))}"  # the form that multiprocessing uses
    current.authkey = authkey
    _process._parent_process = _Parent(parent_name, parent_pid)
    _process._process_counter = itertools.count(1)


class _Parent(_process._ParentProcess):  # pyright: ignore[reportUntypedBaseClass]
    """The process that has made the pool. A worker ends with its agent, and the agent with that process."""

    def __init__(self, name: str, pid: int) -> None:
        _process._ParentProcess.__init__(self, name, pid, None)
        self._end: int | None = None

    @property
    def _sentinel(self) -> int:
        """A descriptor that is readable once the agent has ended; opened on first use."""
        if self._end is None:
            end = open_process(os.getppid())
            self._end = os.pipe()[0] if end is None else end  # no process outlives the agent to wait for it
        return self._end

    @_sentinel.setter
    def _sentinel(self, _: object) -> None:
        pass


__all__ = ["next_identity", "take_identity"]
