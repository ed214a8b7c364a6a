"""Output of an agent's processes, from their pipes to the sessions that own them.

    process ──stdout, stderr──▶ OutputForwarder ──Output──▶ owner
                                      ◀──OutputSeen──

When too much output of one owner is in transit, the pipes of its processes are not read, and processes that fill them
wait in `write`. Records of runs have pipes of their own (`record_forwarder.py`), which outlive their process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from functools import partial

from ropewalk.errors import LinkClosed
from ropewalk.processes.hosted_process import HostedProcess
from ropewalk.processes.messages import Output
from ropewalk.transport.link import Link
from ropewalk.transport.loop import Loop

_READ_BYTES = 64 * 1024
_LAST_READS = 17
"""Number of reads after the end of a process: more than a pipe can hold (a mebibyte) is not read."""
_CREDIT = 1 << 20
"""Characters of output of one owner that may be in transit before its processes wait."""


class OutputForwarder:
    """Reads stdout and stderr of an agent's processes. Everything is called on the loop's thread.

    Args:
        loop: loop of the agent.
        processes: the processes of the agent, by id.
        on_problem: called once, with a description, when output can no longer be kept in files.
    """

    def __init__(self, loop: Loop, processes: Mapping[str, HostedProcess], on_problem: Callable[[str], object]) -> None:
        self._loop = loop
        self._processes = processes
        self._on_problem = on_problem
        self._has_problem = False
        self._under_way: dict[Link, int] = {}

    def begin(self, process: HostedProcess) -> None:
        """Read the output of a process from now on."""
        for fd in process.pipes:
            self._watch(process, fd)

    def finish(self, process: HostedProcess) -> None:
        """Send the last output of a process that has ended."""
        for fd in process.pipes:
            self._loop.unwatch(fd)
            self._read(process, fd, reads=_LAST_READS)
        for is_error, text in process.finish_output():
            self._send(process, is_error, text)

    def seen(self, link: Link, size: int) -> None:
        """Note that an owner has handled output; its processes may write more."""
        self._under_way[link] = self._under_way.get(link, 0) - size
        if self._under_way[link] > _CREDIT // 2:
            return
        for process in self._processes.values():
            if process.owner is link and process.paused:
                for fd in process.paused:
                    self._watch(process, fd)
                process.paused.clear()

    def forget(self, link: Link) -> None:
        """Forget an owner that is gone."""
        self._under_way.pop(link, None)

    def _watch(self, process: HostedProcess, fd: int) -> None:
        self._loop.watch(fd, partial(self._read, process, fd))

    def _read(self, process: HostedProcess, fd: int, *, reads: int = 1) -> None:
        for _ in range(reads):
            try:
                data = os.read(fd, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._loop.unwatch(fd)
                return
            is_error, text = process.feed(fd, data)
            self._notice_problem(process)
            if text:
                self._send(process, is_error, text)
        if self._under_way.get(process.owner, 0) > _CREDIT:
            self._loop.unwatch(fd)
            process.paused.add(fd)

    def _notice_problem(self, process: HostedProcess) -> None:
        problem = process.output_problem()
        if problem and not self._has_problem:  # a full disk affects all of them: one event
            self._has_problem = True
            self._on_problem(f"the output of {process.start.name} {problem}")

    def _send(self, process: HostedProcess, is_error: bool, text: str) -> None:
        size = len(text)
        self._under_way[process.owner] = self._under_way.get(process.owner, 0) + size
        with contextlib.suppress(LinkClosed):  # the loop notices the end of the link by itself
            process.owner.send(Output(process.start.id, is_error, text, size))
