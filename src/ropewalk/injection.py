"""Fault injection: named points where a test can make a process fail. Without a test, each costs one variable lookup.

    code:   if injection.visit and injection.visit("worker.before_task"): return        # True: leave it out
    test:   with ropewalk.testing.faults.at("worker.before_task", faults.kill()): ...

The test writes the faults into a folder and names the folder in the environment; every process of Ropewalk reads it
once when it starts (`load`). This way faults reach processes that the test does not start itself. A process that found
no faults when it started never has any.

This module is at the bottom of the import layers, because agents, workers and links all have such points.
"""

from __future__ import annotations

import fnmatch
import os
import signal
import time
from collections.abc import Callable

import msgspec

VARIABLE = "_ROPEWALK_FAULTS"
"""The variable that names the folder with the faults. It does not start with ROPEWALK_, because such variables are
settings, and unknown settings are errors."""
LAUNCHER = "launcher"
"""The name of the user's own process."""

POINTS = {
    "worker.before_task": "a worker is about to call the user's function",
    "worker.after_task": "the function has returned; its result is nowhere yet",
    "worker.before_flush": "results lie in the worker's page and are about to be sent",
    "worker.after_flush": "results have been sent, and the page still holds them",
    "agent.before_exit_report": "an agent has seen the death of a process and is about to tell (can be dropped)",
    "agent.before_looking": "an agent is about to look through its children for what dead processes left",
    "stage.before_action": "a stage of a trainer is about to perform an action; detail: the action, such as F0:3v2",
    "stage.before_part": "a message of a sum is about to go; detail: such as replicas of stage 0 v3 part, or total",
    "stage.before_assignment": "a process is about to become a worker of a pipeline; detail: the epoch",
    "stage.before_keeping": "a snapshot is about to be brought to its keeper; detail: the epoch",
    "stage.before_copying": "a snapshot is about to be copied as others were lost; detail: the epoch",
    "stage.before_saving": "a stage of a trainer is about to write its part of a checkpoint; detail: the part",
    "link.send": "a message is about to be sent; detail: its type, such as TasksDone (can be dropped)",
}
"""Every point, with its place in the code. A fault at any other name is an error."""


class Fault(msgspec.Struct, frozen=True):
    """What happens at a point, and under which conditions."""

    point: str
    action: str
    """kill, stop, delay or drop."""
    seconds: float = 0.0
    """Duration of a delay or a stop, in seconds; a stop of 0 lasts until the process gets SIGCONT."""
    times: int = 1
    """How often the fault happens in all processes together; 0: always."""
    after: int = 0
    """Number of visits that each process ignores first."""
    process: str = "*"
    """A pattern for the process name: "agent", or a name such as "pool-1.0".

    Only the exact name "launcher" matches the launcher, which is the test itself.
    """
    detail: str = "*"
    """A pattern for the detail that the point reports."""


visit: Callable[[str, str], bool] | None = None
"""Called at each point with its name and detail; True if the operation there is to be skipped. None: no faults."""


def load(process: str) -> None:
    """Read the faults for this process, if there are any; every process calls this when it starts.

    Args:
        process: name of the process.
    """
    global visit
    folder = os.environ.get(VARIABLE)
    visitor = _Visitor(folder, process) if folder else None
    visit = visitor.visit if visitor and visitor.faults else None


def environment() -> dict[str, str]:
    """Return the environment variables that tell a process of the faults; empty without a test."""
    folder = os.environ.get(VARIABLE)
    return {VARIABLE: folder} if folder else {}


class _Visitor:
    def __init__(self, folder: str, process: str) -> None:
        self._folder = folder
        self._process = process
        self._visits: dict[str, int] = {}
        self.faults: dict[str, Fault] = {}
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:  # the test is over
            names = []
        for name in names:
            if name.endswith(".json"):
                with open(os.path.join(folder, name), "rb") as file:
                    fault = msgspec.json.decode(file.read(), type=Fault)
                if fault.process == process or (process != LAUNCHER and fnmatch.fnmatchcase(process, fault.process)):
                    self.faults[name] = fault

    def visit(self, point: str, detail: str = "") -> bool:
        left_out = False
        for name, fault in self.faults.items():
            if fault.point == point and fnmatch.fnmatchcase(detail, fault.detail):
                self._visits[name] = self._visits.get(name, 0) + 1
                if self._visits[name] > fault.after and self._claim(name, fault):
                    left_out |= _happen(fault)
        return left_out

    def _claim(self, name: str, fault: Fault) -> bool:
        """Claim one of the fault's `times` among all processes, and record this process as the one that claimed it."""
        taken = sum(1 for _ in self._records(name))
        while not fault.times or taken < fault.times:
            path = os.path.join(self._folder, f"{name.removesuffix('.json')}.{taken}")
            try:
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                taken += 1
                continue
            except FileNotFoundError:  # the test is over
                return False
            os.write(fd, f"{os.getpid()} {self._process}".encode())
            os.close(fd)
            return True
        return False

    def _records(self, name: str) -> list[str]:
        stem = name.removesuffix("json")
        try:
            return [entry for entry in os.listdir(self._folder) if entry.startswith(stem) and entry != name]
        except FileNotFoundError:
            return []


def _happen(fault: Fault) -> bool:
    match fault.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            _stop(fault.seconds)
        case "delay":
            time.sleep(fault.seconds)
        case _:
            return True
    return False


def _stop(seconds: float) -> None:
    """Stop this process; a child resumes it after `seconds`, because a stopped process cannot resume itself."""
    pid = os.getpid()
    waker = os.fork() if seconds else 0
    if seconds and waker == 0:
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
        os._exit(0)
    os.kill(pid, signal.SIGSTOP)
    if waker:
        os.waitpid(waker, 0)
