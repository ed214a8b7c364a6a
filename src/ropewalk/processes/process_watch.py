"""What an agent watches in the processes that it hosts: time and memory limits, stops, and their use of the host."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from ropewalk.processes.agent_children import AgentChildren
from ropewalk.processes.hosted_process import HostedProcess
from ropewalk.processes.memory_limit import overuse
from ropewalk.processes.messages import Sample
from ropewalk.processes.page import CURRENT
from ropewalk.transport.link import Link
from ropewalk.transport.loop import Loop

SAMPLE_S = 1.0
"""Interval of `sample`, in seconds."""
LIMIT_CHECK_S = 0.05
"""Interval in seconds at which the time limit of a process's tasks is checked."""
_STOPPED = "T"
"""The state of a process that was stopped; see proc(5)."""
_STOPPED_LIMIT_S = 3.0
"""A process that stays stopped (SIGSTOP) this long is killed and replaced (seconds)."""
_STACK_DUMP_S = 0.1
"""Time that a process gets to print its stacks when its task timed out, in seconds."""


class ProcessWatch:
    """Ends processes that break a limit. Everything is called on the loop's thread.

    Args:
        loop: loop of the agent.
        children: the processes of the agent that run.
    """

    def __init__(self, loop: Loop, children: AgentChildren) -> None:
        self._loop = loop
        self._children = children
        self._last_sample = time.monotonic()

    def begin(self, process: HostedProcess) -> None:
        """Check the time limit of a process's tasks from now on, if it has one."""
        if process.start.task_limit_s is not None:
            self._loop.call_later(LIMIT_CHECK_S, lambda: self._check_limit(process))

    def sample(self, now: float) -> dict[Link, list[Sample]]:
        """Return how much each process uses, by its owner; ends those that were stopped or use too much memory."""
        was_away = now - self._last_sample > 2 * SAMPLE_S + 0.5  # the agent was stopped: what it saw is stale
        self._last_sample = now
        samples: dict[Link, list[Sample]] = {}
        for process in list(self._children.by_pid.values()):
            sample = process.sample()
            if sample is None:
                continue
            samples.setdefault(process.owner, []).append(sample)
            if sample.state != _STOPPED:
                process.stopped_since = None
            elif process.stopped_since is None or was_away:
                process.stopped_since = now
            elif now - process.stopped_since >= _STOPPED_LIMIT_S:
                self._children.kill(process, f"it had been stopped (SIGSTOP) for {now - process.stopped_since:.0f} s")
        self._end_overuse()
        return samples

    def _end_overuse(self) -> None:
        limits = {
            pid: process.start.memory_bytes
            for pid, process in self._children.by_pid.items()
            if process.start.bounded and process.start.memory_bytes
        }
        for pid, words in overuse(limits).items():
            self._children.kill(self._children.by_pid[pid], words)

    def _check_limit(self, process: HostedProcess) -> None:
        if process.ended_by or not self._children.runs(process):
            return
        limit_s = process.start.task_limit_s
        assert limit_s is not None
        task = process.page.words[CURRENT]
        if process.running_s() > limit_s and process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGUSR2)  # its stacks become its last output
            self._loop.call_later(_STACK_DUMP_S, lambda: self._end_overrun(process, task))
            return
        self._loop.call_later(LIMIT_CHECK_S, lambda: self._check_limit(process))

    def _end_overrun(self, process: HostedProcess, task: int) -> None:
        if process.ended_by or not self._children.runs(process):
            return
        if process.page.words[CURRENT] != task:  # the task ended meanwhile, and the next one must not be blamed
            self._check_limit(process)
            return
        process.overran = task
        self._children.kill(process, f"its task ran longer than task_timeout_s={process.start.task_limit_s:g}")
