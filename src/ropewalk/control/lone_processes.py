"""The processes of a session that belong to no pool and no program, as one thing that runs.

They are what `Process`, a manager, and the depot of queues and locks are made of. The thing is announced when the first
of them is asked for, and is there as long as any of them is.

    Process.start, Manager(), Queue() ─▶ show_processes(session) ─▶ ControlServer ─▶ LoneProcesses.view
"""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path

from ropewalk.control.process_stacks import of_processes
from ropewalk.control.server import ControlServer, name_of_script
from ropewalk.control.target import ControlTarget, new_id
from ropewalk.control.view import Kind, ProcessView, View
from ropewalk.processes import bootstrap
from ropewalk.processes.managed_process import ManagedProcess
from ropewalk.processes.session import Session

_ANNOUNCED_AFTER_S = 0.2
"""Many processes live for a few milliseconds, and would be gone before anybody can look."""
_LOOK_S = 2.0
"""Seconds between two checks whether any of them is left."""


class LoneProcesses(ControlTarget):
    """The processes of a session that nothing else shows."""

    kind: Kind = "processes"

    def __init__(self, session: Session) -> None:
        self.id: str = new_id()
        self._session = session
        self._started = time.time()
        script = Path(name_of_script()).stem
        self._name = f"{script}-processes" if script else "processes"

    @property
    def name(self) -> str:
        """As in `View`: made of the name of the script."""
        return self._name

    @property
    def are_there(self) -> bool:
        """Whether there are any."""
        manager = self._session.processes
        return any((process := manager.known(id)) is not None and process.spec.kind for id in manager.ids())

    def view(self, panels: Mapping[str, int]) -> View:
        """Return what they show now."""
        rows = tuple(self._row(id, process) for id, process in self._processes().items())
        return View(
            kind=self.kind,
            name=self.name,
            id=self.id,
            pid=os.getpid(),
            state="running" if rows else "closed",
            started=self._started,
            at=time.time(),
            facts={
                "processes": len(rows),
                "hosts": len({row.host for row in rows if row.host}),
                "memory_bytes": sum(row.memory_bytes for row in rows),
            },
            processes=rows,
            process_actions=("kill", "stack"),
        )

    def act(self, action: str, process: str) -> str:
        """Kill a process."""
        if action != "kill":
            raise ValueError(f"a process can be asked to kill, not to {action!r}")
        for id, each in self._processes().items():
            if each.spec.name == process and each.pid:
                self._session.processes.signal(id, signal.SIGKILL)
                return f"{process} is killed"
        raise ValueError(f"{self.name} has no process {process!r} that runs now; ropewalk ps shows them")

    def log_files(self) -> Mapping[str, Path]:
        """The output file of each process, by name."""
        names = [process.spec.name for process in self._processes().values()]
        return {name: self._session.output_file(name) for name in names}

    def stacks(self, node: str | None, timeout_s: float) -> Mapping[str, str]:
        """The Python stacks of a process, or of all, by name."""
        # One that is not linked has no handler yet, and the signal would kill it.
        # A depot runs no code of users.
        ids = {each.spec.name: id for id, each in self._processes().items() if each.link and each.spec.kind != "depot"}
        files = {name: path for name, path in self.log_files().items() if name in ids and node in (None, name)}
        return of_processes(files, lambda name: self._session.processes.signal(ids[name], signal.SIGUSR2), timeout_s)

    def _processes(self) -> dict[str, ManagedProcess]:
        known = {id: self._session.processes.known(id) for id in self._session.processes.ids()}
        return {id: process for id, process in known.items() if process is not None and process.spec.kind}

    def _row(self, id: str, process: ManagedProcess) -> ProcessView:
        manager, spec, sample = self._session.processes, process.spec, process.sample
        return ProcessView(
            name=spec.name,
            group=spec.group,
            kind=spec.kind,
            host=manager.host_of(id),
            pid=process.pid,
            state="running" if process.pid else "starting",
            uptime_s=time.monotonic() - process.asked_at if process.pid else 0.0,
            memory_bytes=sample.memory_bytes if sample else 0,
            cpu_s=sample.cpu_s if sample else 0.0,
            silent_s=manager.silence_of(id),
            is_counted=False,
        )


class _Shown:
    """The sessions whose processes are announced."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: dict[Session, tuple[ControlServer, LoneProcesses]] = {}
        self._hooked: weakref.WeakSet[Session] = weakref.WeakSet()
        """Those whose end is heard of."""

    def show(self, session: Session) -> None:
        with self._lock:
            if session in self._servers or session.closed:
                return
            target = LoneProcesses(session)
            server = ControlServer(session.loop, session.folder, session.run_id, target)
            self._servers[session] = server, target
            is_hooked = session in self._hooked
            self._hooked.add(session)
        server.open_later(_ANNOUNCED_AFTER_S)
        if not is_hooked:
            session.when_closed(lambda: self._hide(session))
        session.loop.call_soon(lambda: self._look_later(session))

    def hide_if_none(self, session: Session) -> bool:
        """Withdraw what is announced if no process is left; returns whether it is."""
        with self._lock:
            shown = self._servers.get(session)
            if shown and shown[1].are_there:
                return False
            self._servers.pop(session, None)
        if shown:
            shown[0].close_soon()
        return True

    def _look_later(self, session: Session) -> None:
        session.loop.call_later(_LOOK_S, lambda: self.hide_if_none(session) or self._look_later(session))

    def _hide(self, session: Session) -> None:
        with self._lock:
            shown = self._servers.pop(session, None)
        if shown:
            shown[0].close_soon()

    def forget(self) -> None:
        """In a forked child: all of it stays with the parent."""
        self._lock = threading.Lock()
        self._servers.clear()


_shown = _Shown()
os.register_at_fork(after_in_child=_shown.forget)


def show_processes(session: Session) -> None:
    """Let other terminals and the page see the processes of a session that nothing else shows.

    May be called whenever one is asked for. Does nothing in a process of a session, as only launchers are looked at.
    """
    if bootstrap.current is None:
        _shown.show(session)


def process_has_ended(session: Session) -> None:
    """Show the processes of a session no longer if this was the last one; on the loop.

    A depot ends without this call, and is missed a moment later.
    """
    if bootstrap.current is None:
        _shown.hide_if_none(session)


__all__ = ["LoneProcesses", "process_has_ended", "show_processes"]
