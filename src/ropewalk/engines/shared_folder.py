"""The folder that the launcher and the hosts of an engine share: credentials go in, the output of jobs comes back.

    ~/.ropewalk/slurm/                     the engine's option folder
    └── ropewalk-<run>/          0700      removed when the last job of the run is over
        └── <request>/           0700
            ├── job.sh           0600      the script of the jobs, if the engine cannot send it to them
            ├── 0.stdin          0600      for one job, which removes it as soon as it has opened it
            └── 0.log            0600      made in advance, because a job would give it another mode

No other user may change the files in it, or a job could be given the credentials of a stranger. The folders above it
may be those of a project, in which others may rename it and put another one in its place: jobs compare what they find
with digests that they were given on another way (`job_script`, `mpi_rank`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Collection
from pathlib import Path

from ropewalk.atomic_files import write_new_file
from ropewalk.engines.engine import EngineFinding
from ropewalk.errors import EngineError
from ropewalk.quantities import shown_size
from ropewalk.trusted_files import make_private_folder, open_output

PREFIX = "ropewalk-"
_LOG_TAIL_BYTES = 64 * 1024
_OLD_S = 30 * 24 * 3600.0
"""A job may wait this long for a node: in the queue of another cluster as well, if that has the same home folder, and
no command here tells of it."""
_LEAST_FREE = 64 << 20
_LOCAL_KINDS = frozenset(["ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay"])
"""Kinds of file systems that hosts do not share with each other."""


class SharedFolder:
    """Makes, reads and removes the files below one folder."""

    def __init__(self, folder: str, prefix: str = PREFIX) -> None:
        """Set the folder, and the prefix of its runs, which distinguishes them from those of another engine."""
        self.path = Path(os.path.abspath(os.path.expanduser(folder)))
        self._prefix = prefix

    def place(self, run_id: str, request: str) -> Path:
        """Return the folder of a request's files."""
        return self.path / f"{self._prefix}{run_id}" / request

    def prepare(self, run_id: str, request: str, count: int, stdin: bytes, script: str = "") -> Path:
        """Make the folder of a request and the files of its jobs.

        Raises:
            EngineError: the folder cannot be made, or other users could change the files in it.
        """
        try:
            make_private_folder(self.path)
            run = self.path / f"{self._prefix}{run_id}"
            if run.is_symlink():
                raise PermissionError(f"{run} is a symbolic link, which we did not make")
            make_private_folder(run)
            folder = run / request
            if os.path.lexists(folder):
                raise FileExistsError(f"{folder} is there already")
            make_private_folder(folder)
            try:
                self._write(folder, count, stdin, script)
            except BaseException:  # a full disk, or a quota: nobody would remove the rest, and the credentials in it
                self.remove_request(run_id, request)
                raise
        except OSError as error:
            advice = "choose another with the option folder, one that all hosts share"
            raise EngineError(f"cannot prepare jobs in {self.path}: {error}; {advice}") from error
        return folder

    def _write(self, folder: Path, count: int, stdin: bytes, script: str) -> None:
        if script:
            write_new_file(folder / "job.sh", [os.fsencode(script)], durable=False)
        for index in range(count):
            write_new_file(folder / f"{index}.log", [], durable=False)
            if stdin:
                write_new_file(folder / f"{index}.stdin", [stdin], durable=False)

    def has_request(self, run_id: str, request: str) -> bool:
        """Return whether a request has files."""
        return (self.place(run_id, request)).exists()

    def log(self, run_id: str, request: str, index: int, kind: str = "log") -> str:
        """Return the end of a job's output, or of its file of another kind; empty if there is none of this user's."""
        try:
            path = self.path / f"{self._prefix}{run_id}" / request / f"{index}.{kind}"
            with open(open_output(path), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - _LOG_TAIL_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def remove_request(self, run_id: str, request: str) -> None:
        """Remove the files of one request; nothing if there are none."""
        folder = self.path / f"{self._prefix}{run_id}"
        shutil.rmtree(folder / request, ignore_errors=True)
        with contextlib.suppress(OSError):  # it holds other requests
            folder.rmdir()

    def remove_credentials(self, run_id: str, request: str, index: int) -> None:
        """Remove the credentials of a job that will not start; does nothing if the job has taken them already."""
        with contextlib.suppress(OSError):
            (self.path / f"{self._prefix}{run_id}" / request / f"{index}.stdin").unlink()

    def remove_run(self, run_id: str) -> None:
        """Remove all files of a run, if there are any."""
        shutil.rmtree(self.path / f"{self._prefix}{run_id}", ignore_errors=True)

    def runs(self, *, older_s: float = 0.0) -> list[str]:
        """Return the runs with files here whose folders have not changed for `older_s` seconds."""
        runs: list[str] = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.path):
                is_ours = entry.name.startswith(self._prefix) and entry.is_dir(follow_symlinks=False)
                if is_ours and time.time() - entry.stat(follow_symlinks=False).st_mtime >= older_s:
                    runs.append(entry.name.removeprefix(self._prefix))
        return runs

    def old_runs(self) -> list[str]:
        """Return the runs whose folders have not changed for a month: their launchers did not clean up, or run long."""
        return self.runs(older_s=_OLD_S)

    def remains(self, busy: Collection[str]) -> dict[str, list[str]]:
        """Return the files of runs that are not busy, in the form of `Engine.remains`."""
        return {run: [f"folder {self.path / (self._prefix + run)}"] for run in self.runs() if run not in busy}

    def check(self) -> EngineFinding:
        """Check whether the folder can be used, for `ropewalk doctor`, by making a file in it and removing it."""
        run = f"check-{os.urandom(4).hex()}"
        try:
            self.prepare(run, "check", 1, b"-")
        except EngineError as error:
            return EngineFinding("shared folder", False, str(error))
        finally:
            self.remove_run(run)
        free = shutil.disk_usage(self.path).free
        if free < _LEAST_FREE:
            return EngineFinding(
                "shared folder", False, f"{self.path} has only {shown_size(free)} free: make room there"
            )
        words = f"{self.path} ({self.kind() or 'unknown'} file system, {shown_size(free)} free)"
        if self.is_local():
            words += "; such a file system is not shared by itself: if hosts do not see it, set the option folder"
        return EngineFinding("shared folder", True, words)

    def kind(self) -> str:
        """Return the type of its file system, such as "nfs4"; empty if unknown."""
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
        """Return whether its file system is of a kind that other hosts do not see."""
        return self.kind() in _LOCAL_KINDS
