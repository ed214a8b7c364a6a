"""A launcher that was killed is started again: by its parent, which ends first what the dead one has left.

    submitted ─▶ launcher (`ropewalk run`) ─▶ agents ─▶ workers
        │            ╳ SIGKILL
        ├─ the agents notice, and end with their processes; what has not ended after some seconds is killed
        ├─ jobs of the dead launcher on a cluster are cancelled
        └─▶ the launcher again: it reads its state where the dead one wrote it

Nothing that lives is handed over: a launcher goes on from what is on a disk, and computes the rest again. So there is
one way to go on after a lost launcher, a lost host and a stopped run. The parent does next to nothing, which is why it
outlives its child.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from ropewalk.cli.leftovers import end_run
from ropewalk.descendants import descendants, kill
from ropewalk.errors import RopewalkError
from ropewalk.escaping import escaped_lines
from ropewalk.processes.launcher_record import runs_of
from ropewalk.transport.kernel import adopt_orphans

_ASKED_TO_END = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
_GRACE_S = 5.0
"""Seconds that agents have to end by themselves after their launcher, and to remove their folders."""
_KILLED_S = 5.0
"""Seconds after which a killed process that is stuck in the kernel is waited for no longer."""


def is_lost(exit_code: int, *, was_asked: bool) -> bool:
    """Return whether a launcher was killed, so that it is worth starting again.

    A script that ended by itself, with an error too, would do the same again; one that was asked to end has to end.

    Args:
        exit_code: as of `subprocess.Popen`: negative for a signal.
        was_asked: whether this process has passed on a request to end.
    """
    return exit_code < 0 and -exit_code not in _ASKED_TO_END and not was_asked


def describe_loss(exit_code: int, num_before: int, most: int) -> str:
    """Return what to tell the user of a lost launcher.

    Args:
        exit_code: the negative number of the signal.
        num_before: how often it was started again before.
        most: how often it may be.
    """
    number = -exit_code
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"  # a real-time one
    how = f"the launcher was ended by {name}"
    if num_before < most:
        return f"{how}, and starts again ({num_before + 1} of {most})"
    return f"{how}, after {most} restarts (--launcher-restarts {most})" if most else how


class LauncherProcess:
    """Runs a command, passes SIGTERM and SIGINT on to it, and starts it again when it is lost.

    Args:
        command: the command of the launcher.
        folder: in which it runs.
        most_restarts: how often it is started again.
        variables: of its environment, beside those of this process.
        descriptors: are open in it too.
        grace_s: seconds that processes of a lost launcher have to end by themselves.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: str,
        most_restarts: int = 0,
        variables: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
        grace_s: float = _GRACE_S,
    ) -> None:
        self._command = command
        self._folder = folder
        self._most_restarts = most_restarts
        self._variables = dict(variables or {})
        self._descriptors = descriptors
        self._grace_s = grace_s
        self._child: subprocess.Popen[bytes] | None = None
        self._asked = 0
        """The number of a signal that this process has received; 0 for none."""

    def run(self, started: Callable[[int], object] = lambda pid: None) -> int:
        """Run it to its end; return the exit code, that of a signal as a shell reports it.

        Args:
            started: is told the process id each time that it has started.
        """
        if self._most_restarts:
            with contextlib.suppress(OSError):  # refused by the kernel: agents end by themselves all the same
                adopt_orphans()
        num_restarts = 0
        while True:
            child = self._start()
            started(child.pid)
            code = self._wait(child)
            if is_lost(code, was_asked=bool(self._asked)):
                if self._most_restarts:
                    _say(describe_loss(code, num_restarts, self._most_restarts))
                    _end_jobs_of(child.pid)
                    _end_descendants(self._grace_s)
                if num_restarts < self._most_restarts and not self._asked:
                    num_restarts += 1
                    continue
            return 128 - code if code < 0 else code

    def _start(self) -> subprocess.Popen[bytes]:
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})  # until the child exists
        try:
            child = self._child = subprocess.Popen(
                self._command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self._variables},
                preexec_fn=lambda: _begin_with(held),
                pass_fds=self._descriptors,
            )
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._pass_on)
            if self._asked:  # after the launcher before had ended, so that it was passed on to none
                os.kill(child.pid, self._asked)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        return child

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._asked = number
        if self._child and self._child.returncode is None:
            # Not by `send_signal`, which waits for a child that has just ended: `_wait` would find no child any more.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child.pid, number)

    def _wait(self, child: subprocess.Popen[bytes]) -> int:
        """Wait for a child; orphans that became children of this process are waited for, too."""
        while self._most_restarts:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            if ended is None or ended.si_pid == child.pid:
                break
            os.waitpid(ended.si_pid, 0)
        return child.wait()


def _begin_with(held: set[int]) -> None:
    """Reset signals in the script's process to those of a job, instead of those of `submit &` or nohup."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _end_jobs_of(pid: int) -> None:
    """Cancel the jobs on clusters of a launcher that is gone."""
    for run_id, engine in runs_of(pid):
        try:
            end_run(run_id, [engine])
        except (RopewalkError, OSError) as error:
            _say(f"{error}; what is left of run {run_id} there ends by itself")


def _end_descendants(grace_s: float) -> None:
    """Wait until all processes below this one have ended, and kill those that do not."""
    began = time.monotonic()
    while left := _descendants():
        waited_s = time.monotonic() - began
        if waited_s > grace_s:
            kill(left)
        if waited_s > grace_s + _KILLED_S:
            _say(f"{len(left)} of its processes cannot be killed; the first is {left[0]}")
            return
        time.sleep(0.02)


def _descendants() -> list[int]:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return descendants(os.getpid())


def _say(message: str) -> None:
    with contextlib.suppress(OSError):  # the disk of the output is full: the launcher is started again all the same
        print(escaped_lines(f"ropewalk: {message}"), flush=True)


__all__ = ["LauncherProcess", "describe_loss", "is_lost"]
