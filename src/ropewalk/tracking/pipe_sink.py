"""The sink of a process that an agent started: records go through a pipe to its launcher.

The agent reads the pipe to the end also after the process was killed, so a record is safe as soon as `put` returns.
"""

from __future__ import annotations

import contextlib
import functools
import os

import msgspec

from ropewalk.processes import bootstrap
from ropewalk.tracking.record_frames import frames_of
from ropewalk.tracking.records import Record

_encode = msgspec.msgpack.Encoder().encode


class PipeSink:
    """A `RecordSink` that writes to a pipe. Any thread may use it, and any forked child.

    `put` waits while the pipe is full, that is while the launcher handles records more slowly than they are made.

    Args:
        fd: the end of the pipe to write to, in blocking mode; it stays the caller's.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def put(self, run: str, record: Record) -> None:
        """Write a record; it reaches the launcher, whatever happens to this process from then on.

        Raises:
            TypeError: the record has a value that msgpack cannot represent.
            ValueError: the record has more than 16 MiB.
        """
        with contextlib.suppress(OSError):  # the agent is gone, and so is this process in a moment
            for frame in frames_of(_encode((run, record))):  # as a `RunRecord` is encoded
                os.write(self._fd, frame)

    def flush(self, timeout_s: float) -> bool:
        """Return True: what was put is out of this process."""
        return True

    settle = flush


def sink_here() -> PipeSink | None:
    """Return the sink of this process if an agent started it; else None."""
    context = bootstrap.current
    return None if context is None else _sink(context.records_fd)


@functools.cache
def _sink(fd: int) -> PipeSink:
    return PipeSink(fd)
