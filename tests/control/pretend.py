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
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ropewalk.atomic_files import write_new_file
from ropewalk.control.launchers import Launcher, find_launchers
from ropewalk.control.server import Announcement, ControlServer
from ropewalk.control.target import ControlTarget
from ropewalk.control.view import EventView, Kind, ProcessView, View
from ropewalk.transport.credentials import create_run_folder
from tests.patience import PATIENCE_S
from tests.transport.ends import running_loop

RUN = "run-of-pretence"


def view_of(name: str) -> View:
    """A program of three replicas, one of which was restarted and is in a call."""
    return View(
        kind="program",
        name=name,
        id="id-of-pretence",
        pid=os.getpid(),
        state="running",
        started=1_700_000_000.0,
        at=1_700_000_075.0,
        facts={"mode": "processes"},
        processes=(
            ProcessView(
                name="replay.0",
                group="replay",
                kind="service",
                state="running",
                pid=4711,
                host="here",
                restarts=1,
                uptime_s=75.0,
                memory_bytes=3 << 30,
                cpu_s=4.5,
                done=1234,
                waiting=7,
                doing="sample",
                doing_s=2.5,
                last_cause="killed by SIGKILL",
            ),
            ProcessView(name="actor.0", group="actor", kind="worker", state="running"),
            ProcessView(name="actor.1", group="actor", kind="worker", state="completed"),
        ),
        events=(EventView(text="replay.0 was started again", kind="restart", process="replay.0"),),
        offers=("graph",),
        actions=("stop",),
        process_actions=("kill",),
    )


class Pretence(ControlTarget):
    """The target of a control server; a test sets what it shows and does."""

    kind: Kind = "program"
    id = "id-of-pretence"

    @property
    def name(self) -> str:
        return self._name

    def __init__(self, name: str) -> None:
        self._name = name
        self.now = view_of(name)
        self.files: dict[str, Path] = {}
        self.stopped_with: list[float | None] = []
        self.on_stop: Callable[[], object] = lambda: None
        self.before_view: Callable[[], object] = lambda: None
        self.threads: list[str] = []

    def view(self, panels: dict[str, int]) -> View:
        self.threads.append(threading.current_thread().name)
        self.before_view()
        return replace(self.now, panels={panel: {"cursor": cursor} for panel, cursor in panels.items()})

    def act(self, action: str, process: str) -> str:
        if action != "kill":
            return super().act(action, process)
        return f"{process} is killed"

    def stop(self, grace_s: float | None) -> None:
        self.stopped_with.append(grace_s)
        ended = tuple(replace(process, state="ended") for process in self.now.processes)
        self.now = replace(self.now, state="stopped", processes=ended)
        self.on_stop()

    def log_files(self) -> Mapping[str, Path]:
        return self.files

    def stacks(self, node: str | None, timeout_s: float) -> Mapping[str, str]:
        if node == "broken":
            raise ValueError("no such node: broken")
        stacks = {p.name: f'Thread 1:\n  File "{p.group}.py", line 3 in run' for p in self.now.processes}
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
        stopped.wait(4 * PATIENCE_S)


if __name__ == "__main__":
    main()
