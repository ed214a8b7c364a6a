"""Records of runs, from the pipes of an agent's processes to the sessions that handle them.

    process ──pipe──▶ RecordForwarder ──Records──▶ session: RecordRelay
                              ◀──RecordsSeen──

The bytes are passed on as they are. A pipe is read at once when something comes after a pause, and then at most every
20 ms, so that a process that logs all the time wakes its agent 50 times a second and not at each record. When too many
bytes are in transit to a session, its pipes are not read, and processes that fill them wait in `write`. A pipe outlives
its process: it is read to the end before the end of the process is reported.

The records of a process go to its owner if the owner handles them. Else they go on to the session that started the
owner: so nothing is lost when the owner is killed, and nothing is sent twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Mapping
from functools import partial

from ropewalk.processes.hosted_process import HostedProcess
from ropewalk.processes.messages import Records, RecordsFlushed
from ropewalk.transport.link import Link
from ropewalk.transport.loop import Loop

_PAUSE_S = 0.02
"""The least time between two reads of one pipe, in seconds."""
_CREDIT = 1 << 20
"""Bytes in transit to one session before its pipes are not read any more."""
_PIPE_BYTES = 1 << 20
"""Capacity of a pipe that was found half full: the kernel lets each user have 64 of these, so others stay small."""
_FULL_BYTES = 32 * 1024
_LAST_READS = 4
"""Number of reads of 1 MiB after the end of a process: a pipe does not hold more, unless its process has enlarged it.
"""


class RecordForwarder:
    """Reads the record pipes of an agent's processes. Everything is called on the loop's thread.

    Args:
        loop: loop of the agent.
        processes: the processes of the agent, by id.
    """

    def __init__(self, loop: Loop, processes: Mapping[str, HostedProcess]) -> None:
        self._loop = loop
        self._processes = processes
        self._receivers: dict[HostedProcess, tuple[Link, str]] = {}
        self._wrote: set[HostedProcess] = set()
        """Processes that have written records."""
        self._under_way: dict[Link, int] = {}
        self._paused: dict[Link, list[HostedProcess]] = {}
        self._buffer = memoryview(bytearray(_PIPE_BYTES))

    def begin(self, process: HostedProcess) -> None:
        """Read the records of a process from now on."""
        self._receivers[process] = self._receiver(process)
        self._watch(process)

    def finish(self, process: HostedProcess) -> None:
        """Send the last records of a process that has ended, and of those that its session has started."""
        receiver = self._receivers.get(process)
        if receiver is None:
            return
        link = receiver[0]
        through = [each for each, to in self._receivers.items() if to == (link, process.start.id)]
        for each in {process, *through}:  # now, while the process is known there in whose name they go
            self._loop.unwatch(each.records)
            self._read_to_the_end(each)
            if each in self._wrote:
                self._send(each, b"", is_last=True)
            self._wrote.discard(each)
            del self._receivers[each]

    def seen(self, link: Link, size_bytes: int) -> None:
        """Note that a session has handled records; it gets more."""
        self._under_way[link] = self._under_way.get(link, 0) - size_bytes
        if self._under_way[link] <= _CREDIT // 2:
            for process in self._paused.pop(link, ()):
                self._watch(process)

    def flush(self, link: Link, number: int) -> None:
        """Send a session all that its processes have written so far, and then the number of its request."""
        for process, (receiver, _) in self._receivers.items():
            if receiver is link:
                self._read_to_the_end(process)
        link.send_if_open(RecordsFlushed(number))

    def forget(self, link: Link) -> None:
        """Forget a session that is gone."""
        self._under_way.pop(link, None)
        self._paused.pop(link, None)

    def _receiver(self, process: HostedProcess) -> tuple[Link, str]:
        """Return the link on which the records of a process go, and a process that is known there."""
        while not process.start.keeps_records and (owner := self._processes.get(process.owner.peer)):
            process = owner
        return process.owner, process.start.id

    def _watch(self, process: HostedProcess) -> None:
        if process in self._receivers:
            self._loop.watch(process.records, partial(self._read, process))

    def _read(self, process: HostedProcess) -> None:
        self._loop.unwatch(process.records)
        size = self._read_once(process)
        if size == 0:
            return  # the process has closed the pipe
        if size and size > _FULL_BYTES:
            with contextlib.suppress(OSError):  # this user has too many large pipes already
                fcntl.fcntl(process.records, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        link, _ = self._receivers[process]
        if self._under_way.get(link, 0) > _CREDIT:
            self._paused.setdefault(link, []).append(process)
        else:
            self._loop.call_later(_PAUSE_S, partial(self._watch, process))

    def _read_to_the_end(self, process: HostedProcess) -> None:
        for _ in range(_LAST_READS):
            if not self._read_once(process):
                return

    def _read_once(self, process: HostedProcess) -> int | None:
        """Read a pipe once, and send what was in it.

        Returns:
            How many bytes; 0 if the process has closed the pipe, None if it has written nothing since the last read, as
            when a session's `flush` has read the pipe in the same turn of the loop.
        """
        try:
            size = os.readv(process.records, [self._buffer])
        except BlockingIOError:
            return None
        if size:
            self._wrote.add(process)
            self._send(process, bytes(self._buffer[:size]))
        return size

    def _send(self, process: HostedProcess, data: bytes, *, is_last: bool = False) -> None:
        link, id = self._receivers[process]
        self._under_way[link] = self._under_way.get(link, 0) + len(data)
        link.send_if_open(Records(id, process.start.id, data, is_last))
