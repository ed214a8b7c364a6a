"""Named points where a test makes something go wrong; without a test each costs one look at a variable.

    code:   if injection.visit and injection.visit("worker.before_task"): return        # True: leave it out
    test:   with ropewalk.testing.faults.at("worker.before_task", faults.kill()): ...

The test writes what shall happen into a folder and names the folder in the
environment; every process of ours that starts then reads it once (`load`). So the
points reach processes that the test never sees. Nothing happens at a point in a
process that was not told so when it started.

This module stands at the bottom, because agents, workers and links all have points.
"""

from __future__ import annotations

import fnmatch
import os
import signal
import time
from collections.abc import Callable

import msgspec

#: Names the folder with the faults. No ROPEWALK_ variable: those are settings, and unknown ones are refused.
VARIABLE = "_ROPEWALK_FAULTS"
#: What the user's own process is called here.
LAUNCHER = "launcher"

#: Every point and where it stands. A fault at any other name is refused.
POINTS = {
    "worker.before_task": "a worker is about to call the user's function",
    "worker.after_task": "the function has returned; its result is nowhere yet",
    "worker.before_flush": "results lie in the worker's page and are about to be sent",
    "worker.after_flush": "results have been sent, and the page still holds them",
    "agent.before_exit_report": "an agent has seen the death of a process and is about to tell (can be dropped)",
    "agent.before_looking": "an agent is about to look through its children for what dead processes left",
    "stage.before_action": "a stage of a trainer is about to perform an action; detail: the action, such as F0:3v2",
    "stage.before_assignment": "a process is about to become a worker of a pipeline; detail: the epoch",
    "stage.before_keeping": "a snapshot is about to be brought to its keeper; detail: the epoch",
    "stage.before_copying": "a snapshot is about to be copied as others were lost; detail: the epoch",
    "stage.before_saving": "a stage of a trainer is about to write its part of a checkpoint; detail: the part",
    "link.send": "a message is about to be sent; detail: its type, such as Done (can be dropped)",
}


class Fault(msgspec.Struct, frozen=True):
    """What happens at a point, and when."""

    point: str
    action: str
    """kill, stop, delay or drop."""
    seconds: float = 0.0
    """How long a delay lasts, or a stop (0: until somebody sends SIGCONT)."""
    times: int = 1
    """How often it happens in all processes together; 0: always."""
    after: int = 0
    """How many visits each process passes by first."""
    process: str = "*"
    """A pattern for the process: "agent" or a name such as "pool-1.0". The launcher has to be named, as "launcher":
    it is the test itself."""
    detail: str = "*"
    """A pattern for what the point tells of itself."""


#: Called at each point with its name and detail; True when what stands there is to be left out. None: no faults.
visit: Callable[[str, str], bool] | None = None


def load(process: str) -> None:
    """Read the faults for this process, if there are any; at the start of each process.

    Args:
        process: its name.
    """
    global visit
    folder = os.environ.get(VARIABLE)
    visitor = _Visitor(folder, process) if folder else None
    visit = visitor.visit if visitor and visitor.faults else None


def environment() -> dict[str, str]:
    """What a process needs in its environment to know of the faults; empty without a test."""
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
        """Take one of the times it may happen, among all processes, and write down who did."""
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
    """Stop this process; a child wakes it after some seconds, because it cannot do so itself."""
    pid = os.getpid()
    waker = os.fork() if seconds else 0
    if seconds and waker == 0:
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
        os._exit(0)
    os.kill(pid, signal.SIGSTOP)
    if waker:
        os.waitpid(waker, 0)
