"""The folder that the launcher and the hosts of an engine share: credentials go in, the output of jobs comes back.

    ~/.ropewalk/slurm/                     the engine's option folder
    └── ropewalk-<run>/          0700      removed when the last job of the run is over
        └── <request>/           0700
            ├── job.sh           0600      what jobs do, where the engine cannot send it to them
            ├── 0.stdin          0600      for one job; removed by it as soon as it has opened it
            └── 0.log            0600      made before a job writes to it, who would give it other rights

Nobody else may change what lies in it, or a job could be given the credentials of a stranger.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from pathlib import Path

from ropewalk.engines.engine import Finding
from ropewalk.errors import EngineError

PREFIX = "ropewalk-"
_LOG_TAIL_BYTES = 64 * 1024
_OLD_S = 24 * 3600.0
_LEAST_FREE = 64 << 20
#: Kinds of file systems that hosts do not share with each other.
_LOCAL_KINDS = frozenset(["ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay"])


class SharedFolder:
    """Makes, reads and removes what lies below one folder."""

    def __init__(self, folder: str, prefix: str = PREFIX) -> None:
        """Name the folder; `prefix` begins the names of its runs, and tells them from those of another user of it."""
        self.path = Path(os.path.abspath(os.path.expanduser(folder)))
        self._prefix = prefix

    def place(self, run_id: str, request: str) -> Path:
        """Where the files of a request are."""
        return self.path / f"{self._prefix}{run_id}" / request

    def prepare(self, run_id: str, request: str, count: int, stdin: bytes, script: str = "") -> Path:
        """Make the folder of a request and the files of its jobs.

        Raises:
            EngineError: it cannot be made, or others could change what lies in it.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _refuse_foreign(self.path)
            run = self.path / f"{self._prefix}{run_id}"
            run.mkdir(mode=0o700, exist_ok=True)
            if run.is_symlink():
                raise PermissionError(f"{run} is a symbolic link, which we did not make")
            _refuse_foreign(run)
            os.chmod(run, 0o700)  # whatever the umask is
            folder = run / request
            folder.mkdir(mode=0o700)
            os.chmod(folder, 0o700)
            if script:
                _write_new(folder / "job.sh", script.encode())
            for index in range(count):
                _write_new(folder / f"{index}.log", b"")
                if stdin:
                    _write_new(folder / f"{index}.stdin", stdin)
        except OSError as error:
            advice = "choose another with the option folder, one that all hosts share"
            raise EngineError(f"cannot prepare jobs in {self.path}: {error}; {advice}") from error
        return folder

    def has_request(self, run_id: str, request: str) -> bool:
        """Whether there are files of a request."""
        return (self.place(run_id, request)).exists()

    def log(self, run_id: str, request: str, index: int, kind: str = "log") -> str:
        """The end of a job's output, or of its file of another kind; empty if there is none."""
        try:
            with open(self.path / f"{self._prefix}{run_id}" / request / f"{index}.{kind}", "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - _LOG_TAIL_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def remove_request(self, run_id: str, request: str) -> None:
        """Remove the files of one request; nothing if there are none."""
        folder = self.path / f"{self._prefix}{run_id}"
        shutil.rmtree(folder / request, ignore_errors=True)
        with contextlib.suppress(OSError):  # others lie in it
            folder.rmdir()

    def remove_credentials(self, run_id: str, request: str, index: int) -> None:
        """Remove the credentials of a job that will not start; nothing if it has taken them already."""
        with contextlib.suppress(OSError):
            (self.path / f"{self._prefix}{run_id}" / request / f"{index}.stdin").unlink()

    def remove_run(self, run_id: str) -> None:
        """Remove all that a run has left; nothing if it left nothing."""
        shutil.rmtree(self.path / f"{self._prefix}{run_id}", ignore_errors=True)

    def old_runs(self) -> list[str]:
        """The runs whose folders have not changed for a day: of launchers that could not tidy up, or long."""
        runs: list[str] = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.path):
                is_ours = entry.name.startswith(self._prefix) and entry.is_dir(follow_symlinks=False)
                if is_ours and time.time() - entry.stat(follow_symlinks=False).st_mtime > _OLD_S:
                    runs.append(entry.name.removeprefix(self._prefix))
        return runs

    def check(self) -> Finding:
        """Whether it can be used, for `ropewalk doctor`: a file is made in it, and removed again."""
        run = f"check-{os.urandom(4).hex()}"
        try:
            self.prepare(run, "check", 1, b"-")
        except EngineError as error:
            return Finding("shared folder", False, str(error))
        finally:
            self.remove_run(run)
        free = shutil.disk_usage(self.path).free
        if free < _LEAST_FREE:
            return Finding("shared folder", False, f"{self.path} has only {free >> 20} MiB free: make room there")
        words = f"{self.path} ({self.kind() or 'unknown'} file system, {free >> 20} MiB free)"
        if self.is_local():
            words += "; such a file system is not shared by itself: if hosts do not see it, set the option folder"
        return Finding("shared folder", True, words)

    def kind(self) -> str:
        """The kind of its file system, such as "nfs4"; empty if unknown."""
        try:
            mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        found, longest = "", -1
        for line in mounts.splitlines():
            _, point, kind, *_ = line.split()
            if len(point) >= longest and self.path.is_relative_to(point.replace("\\040", " ")):
                found, longest = kind, len(point)
        return found

    def is_local(self) -> bool:
        """Whether it looks as if other hosts do not see it."""
        return self.kind() in _LOCAL_KINDS


def _refuse_foreign(folder: Path) -> None:
    """Refuse a folder in which somebody else could put other credentials in the place of ours."""
    facts = folder.stat()
    if not stat.S_ISDIR(facts.st_mode):
        raise NotADirectoryError(f"{folder} is not a folder")
    if facts.st_uid not in (os.getuid(), 0):
        raise PermissionError(f"{folder} belongs to the user {facts.st_uid}, not to you")
    if facts.st_mode & 0o022 and not facts.st_mode & stat.S_ISVTX:
        raise PermissionError(f"others may change what is in {folder} (mode {stat.S_IMODE(facts.st_mode):04o})")


def _write_new(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        file.write(content)
