"""The child processes of an agent: those that it started, and those that they left behind.

An agent adopts orphans (`kernel.adopt_orphans`). Each process that it hosts leads a session and a group of its own.
So a child of the agent is one of these:

    a hosted process, whose pid a fork server has told     by its pid
    a fork server                                          by its pid
    an orphan of a hosted process that still runs          by its session, or by ROPEWALK_PROCESS in its environment
    an orphan of one that has ended                        everything else: it is killed

Between a fork and the fork server's answer, a hosted process looks like an orphan of one that has ended. While an
answer is awaited, such a child is left alone, and the end of one is remembered.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from ropewalk import injection
from ropewalk.descendants import descendants, kill, own_children
from ropewalk.processes.fork_channel import ForkChannel
from ropewalk.processes.hosted_process import HostedProcess

_PAUSE_S = 0.001
"""Pause between looks whether the last children have ended, in seconds."""


class AgentChildren:
    """Knows the children of this process, collects their exit codes, and ends them.

    Args:
        processes: the processes of the agent, by id; one without a pid is being forked.
        fork_channels: its fork servers.
    """

    def __init__(self, processes: dict[str, HostedProcess], fork_channels: Collection[ForkChannel]) -> None:
        self.by_pid: dict[int, HostedProcess] = {}
        """The hosted processes that have not ended."""
        self._processes = processes
        self._fork_channels = fork_channels
        self._awaited: HostedProcess | None = None
        """The process whose fork was awaited when this was last asked."""
        self._early_exits: dict[int, int] = {}
        """Exit codes of children that have ended while the answer to a fork was awaited."""
        self._orphans_wait = False
        """Whether to look for orphans again when no fork is awaited any more."""

    @property
    def _forks_awaited(self) -> bool:
        # Asked at each answer of a fork server. Answers come in the order of the requests, so the newest process
        # without one answers for many questions; looking at all took time with the square of their number.
        known = self._awaited
        if known is None or known.pid is not None or self._processes.get(known.start.id) is not known:
            self._awaited = next((each for each in reversed(self._processes.values()) if each.pid is None), None)
        return self._awaited is not None

    def started(self, process: HostedProcess, pid: int) -> None:
        """Note that a process was forked."""
        process.pid = pid
        self.by_pid[pid] = process

    def early_exit(self, pid: int) -> int | None:
        """Return the exit code of a process that has ended before its fork was known; None if it has not."""
        return self._early_exits.pop(pid, None)

    def forks_answered(self) -> None:
        """End orphans that were left alone until the fork servers have answered, if they all have."""
        if self._forks_awaited:
            return
        self._early_exits.clear()  # these were orphans; their pids may be reused
        if self._orphans_wait:
            self._orphans_wait = False
            self._end_orphans()

    def forget(self, process: HostedProcess) -> None:
        """Forget a process that has ended."""
        if process.pid:
            self.by_pid.pop(process.pid, None)

    def runs(self, process: HostedProcess) -> bool:
        """Return whether a process was started and has not ended."""
        return process.pid is not None and self.by_pid.get(process.pid) is process

    def kill(self, process: HostedProcess, why: str) -> None:
        """Kill a process, once its pid is known; the first reason counts."""
        process.ended_by = process.ended_by or why
        if process.pid and self.runs(process):  # else it is dead, and its pid may belong to another process
            kill([process.pid])

    def reap(self) -> list[tuple[HostedProcess, int]]:
        """Collect the children that have ended; returns the hosted ones, with their exit codes."""
        ended: list[tuple[HostedProcess, int]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            code = os.waitstatus_to_exitcode(status)
            process = self.by_pid.get(pid)
            if process:
                ended.append((process, code))
                continue
            was_fork_server = any(channel.ended(pid, code) for channel in self._fork_channels)
            # An orphan of a process of ours, or a process whose fork reply is still in transit.
            if not was_fork_server and self._forks_awaited:
                self._early_exits[pid] = code
        return ended

    def end_groups(self, dead: Iterable[HostedProcess]) -> None:
        """End what dead processes left behind: their groups, and orphans that became our children."""
        for process in dead:
            assert process.pid is not None
            self.by_pid.pop(process.pid, None)
            _kill_group(process.pid)
        self._orphans_wait = self._forks_awaited
        self._end_orphans()

    def end_all(self, timeout_s: float) -> None:
        """Kill all children and their descendants, and wait until they have ended, or for `timeout_s`."""
        for process in list(self._processes.values()):
            if process.pid:
                _kill_group(process.pid)
        deadline = time.monotonic() + timeout_s
        with contextlib.suppress(ChildProcessError):  # there are none any more, and so no descendants either
            while time.monotonic() < deadline:
                kill(own_children())  # repeatedly: children that they leave behind become ours
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
                time.sleep(_PAUSE_S)

    def _end_orphans(self) -> None:
        if injection.visit:
            injection.visit("agent.before_looking", "")
        names = {process.start.name for process in self.by_pid.values()}
        for orphan in own_children():
            if not self._is_expected(orphan, names):
                kill((orphan, *descendants(orphan)))

    def _is_expected(self, pid: int, names: set[str]) -> bool:
        """Return whether a child of ours is a process that we started, or an orphan of one that is still running."""
        if pid in self.by_pid or any(pid == channel.pid for channel in self._fork_channels):
            return True
        try:
            leader = os.getsid(pid)
        except ProcessLookupError:
            return True  # it has ended, and is reaped in a moment
        if leader in self.by_pid or _process_name(pid) in names:
            return True
        # Perhaps a worker whose fork reply is still in transit; if it is not, the reply calls us again.
        return leader in (pid, os.getsid(0)) and self._forks_awaited


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _process_name(pid: int) -> str:
    """Return the name of the process of ours that started a program, where the kernel tells."""
    with contextlib.suppress(OSError):
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if variable.startswith(b"ROPEWALK_PROCESS="):
                return variable.partition(b"=")[2].decode(errors="replace")
    return ""
