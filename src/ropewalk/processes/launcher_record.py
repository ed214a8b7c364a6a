"""Which launchers of this user are alive, for commands that find their jobs on a cluster later.

A launcher with jobs elsewhere leaves a file in the state folder and holds a lock on it, which the kernel releases
however the process ends. The file stays when the launcher is killed: it says that its jobs are left over. Locks are
valid only under the kernel on which they were taken; of a launcher on another host only its name is known (the state
folder may be on a file system that hosts share), and nothing of it is removed unless its run is named. A name does not
tell a host from others: those of two clusters may be called alike.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os
import platform
import urllib.parse
from pathlib import Path

import msgspec

from ropewalk.atomic_files import StagedFile, boot_id, write_locked_file
from ropewalk.setting_values import state_folder
from ropewalk.trusted_files import make_private_folder, read_trusted


class LauncherState(enum.Enum):
    """The state of the launcher of a run."""

    ALIVE = "alive"
    GONE = "gone"
    ELSEWHERE = "on another host"
    UNKNOWN = "unknown"


class _Facts(msgspec.Struct, frozen=True):
    run_id: str
    engine: str
    host: str
    boot_id: str
    pid: int


class LauncherRecord:
    """Records that this process has jobs of a run on an engine, until `close`.

    A folder that cannot be used is not an error.
    """

    def __init__(self, run_id: str, engine: str) -> None:
        self._path = _path(run_id)
        self._file: StagedFile | None = None
        facts = _Facts(run_id, engine, platform.node(), boot_id(), os.getpid())
        with contextlib.suppress(OSError):
            make_private_folder(self._path.parent)
            self._file = write_locked_file(self._path, msgspec.json.encode(facts))

    def close(self) -> None:
        """Remove the record when its jobs have ended; may be called twice."""
        if self._file:
            self._path.unlink(missing_ok=True)
        self.forget()

    def forget(self) -> None:
        """In a forked child: the record stays with the parent, and its lock must not outlive it."""
        if self._file:
            self._file.close()
            self._file = None


def launcher_of(run_id: str) -> tuple[LauncherState, str]:
    """Return the state of the launcher of a run, with a description for the user."""
    facts = _read(_path(run_id))
    if facts is None:
        return LauncherState.UNKNOWN, "no record of its launcher on this machine"
    who = f"pid {facts.pid} on {facts.host}"
    if facts.boot_id and facts.boot_id == boot_id():
        if _is_locked(_path(run_id)):
            return LauncherState.ALIVE, f"its launcher runs: {who}"
        return LauncherState.GONE, f"its launcher is gone: {who}"
    if facts.host == platform.node():
        # Two clusters that share a home may both have a host of this name.
        where = f"{who}, before the last start of this machine or on another one of that name"
        return LauncherState.ELSEWHERE, f"its launcher was {where}; whether it runs cannot be seen here"
    return LauncherState.ELSEWHERE, f"its launcher was {who}; whether it runs can only be seen there"


def recorded_engines() -> set[str]:
    """Return the engines on which launchers of this user have jobs, or have left some over."""
    found = (_read(file) for file in _folder().glob("*.json"))
    return {facts.engine for facts in found if facts}


def runs_of(pid: int) -> list[tuple[str, str]]:
    """Return the runs, with their engines, whose launcher was a process of this machine that is gone.

    Args:
        pid: the id that the process had.
    """
    found = (_read(file) for file in _folder().glob("*.json"))
    here = [facts for facts in found if facts and facts.pid == pid and facts.boot_id == boot_id()]
    return [(facts.run_id, facts.engine) for facts in here if launcher_of(facts.run_id)[0] is LauncherState.GONE]


def forget_run(run_id: str) -> None:
    """Remove the record of a run whose launcher is gone and whose jobs have ended."""
    _path(run_id).unlink(missing_ok=True)


def _folder() -> Path:
    return state_folder(os.environ) / "launchers"


def _path(run_id: str) -> Path:
    # The run's name comes from the cluster: a label or a job's name that another user may have chosen.
    return _folder() / f"{urllib.parse.quote(run_id, safe='', errors='replace')}.json"


def _read(file: Path) -> _Facts | None:
    try:
        return msgspec.json.decode(read_trusted(file), type=_Facts)
    except (OSError, ValueError, RecursionError):
        return None


def _is_locked(file: Path) -> bool:
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # it has just ended properly
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
