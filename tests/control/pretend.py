"""A program that only pretends to run, behind a real control server with a loop and a socket of its own.

As a module, it is a launcher in a process of its own: python -m tests.control.pretend NAME [FILE OF OUTPUT]
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from ropewalk.atomic_files import write_new_file
from ropewalk.control.server import Announcement, ControlServer
from ropewalk.control.launchers import Launcher, find_launchers
from ropewalk.program.status import NodeCall, NodeStatus, ProgramStatus
from ropewalk.transport.credentials import create_run_folder
from tests.transport.ends import DEADLINE_S, running_loop

RUN = "run-of-pretence"


def status_of(name: str) -> ProgramStatus:
    """A program of three replicas, one of which was restarted and is in a call."""
    return ProgramStatus(
        name=name,
        run_id=RUN,
        pid=os.getpid(),
        state="running",
        mode="processes",
        started=1_700_000_000.0,
        nodes=(
            NodeStatus(
                name="replay",
                replica=0,
                kind="service",
                state="running",
                generation=1,
                pid=4711,
                host="here",
                restarts=1,
                uptime_s=75.0,
                memory_bytes=3 << 30,
                cpu_s=4.5,
                calls_done=1234,
                calls_waiting=7,
                calls_running=(NodeCall("sample", 2.5),),
                last_cause="killed by SIGKILL",
            ),
            NodeStatus(name="actor", replica=0, kind="worker", state="running"),
            NodeStatus(name="actor", replica=1, kind="worker", state="completed"),
        ),
        events=("replay.0 was started again",),
    )


class Pretence:
    """The target of a control server; a test sets what it says and does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.now = status_of(name)
        self.files: dict[str, Path] = {}
        self.stopped_with: list[float | None] = []
        self.on_stop: Callable[[], object] = lambda: None
        self.before_status: Callable[[], object] = lambda: None
        self.threads: list[str] = []

    def status(self) -> ProgramStatus:
        self.threads.append(threading.current_thread().name)
        self.before_status()
        return self.now

    def stop(self, grace_s: float | None) -> None:
        self.stopped_with.append(grace_s)
        self.now = replace(self.now, state="stopped", nodes=tuple(replace(n, state="ended") for n in self.now.nodes))
        self.on_stop()

    def log_files(self) -> Mapping[str, Path]:
        return self.files

    def stacks(self, node: str | None, timeout_s: float) -> Mapping[str, str]:
        if node == "broken":
            raise ValueError("no such node: broken")
        stacks = {n.label: f'Thread 1:\n  File "{n.name}.py", line 3 in run' for n in self.now.nodes}
        return {label: text for label, text in stacks.items() if node is None or label.startswith(node)}


@contextlib.contextmanager
def controlled(target: Pretence) -> Generator[tuple[ControlServer, Launcher]]:
    """A control server for a target, and what another terminal finds of it."""
    folder = create_run_folder()
    try:
        with running_loop() as loop:
            server = ControlServer(loop, folder, RUN, target)
            server.open()
            try:
                (found,) = [each for each in find_launchers([folder.parent]) if each.file == server.file]
                yield server, found
            finally:
                server.close()
    finally:
        shutil.rmtree(folder)


def announce(folder: Path, announcement: Announcement) -> Path:
    """Write the file of a launcher as a control server would."""
    path = folder / "control-1-1.json"
    write_new_file(path, [msgspec.json.encode(announcement)])
    return path


def main() -> None:
    target = Pretence(sys.argv[1])
    target.files = {Path(file).stem: Path(file) for file in sys.argv[2:]}
    stopped = threading.Event()
    target.on_stop = stopped.set
    if target.name.endswith("-dies"):
        target.on_stop = lambda: os.kill(os.getpid(), signal.SIGKILL)
    with controlled(target):
        print("ready", flush=True)
        stopped.wait(4 * DEADLINE_S)


if __name__ == "__main__":
    main()
