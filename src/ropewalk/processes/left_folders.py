"""Removes folders that were left by processes that were killed.

A launcher's folder is removed by its agent on the same host, which outlives it. A program of threads has no agent, a
launcher on a cluster has none on its own host, and an agent on another host makes its own folder there; when one of
them is killed, its folder stays. So it holds a lock on a file in its folder, which the kernel releases however the
process ends. Folders whose file is not locked are removed by the next of these processes of this user on that host, and
by `ropewalk ps`.

A lock and not a process ID: IDs are reused, and mean something else in each container, while `/tmp` may be shared.
Locks are only tested on the kernel on which they were taken, as some network drives do not show the locks of other
machines.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path

from ropewalk.atomic_files import StagedFile, boot_id, write_locked_file
from ropewalk.transport.credentials import create_run_folder

CLAIM = "owner.claim"
"""The file that the owner of a folder keeps locked."""


class FolderClaim:
    """Marks a folder as in use while this process lives, or until `close`."""

    def __init__(self, folder: Path) -> None:
        self._file: StagedFile | None = None
        with contextlib.suppress(OSError):  # locks are not supported: then the folder is not claimed, and never removed
            self._file = write_locked_file(folder / CLAIM, boot_id().encode())

    @property
    def descriptors(self) -> Sequence[int]:
        """The descriptors with which a child process has the claim too, until it ends."""
        return [self._file.file.fileno()] if self._file else []

    def close(self) -> None:
        """Release the claim: the folder is gone, or may be removed; may be called twice."""
        if self._file:
            self._file.close()


@contextlib.contextmanager
def claimed_folder(parent: Path) -> Generator[Path]:
    """Make a folder that only this user can enter, for the block; if this process is killed, another one removes it."""
    pid = os.getpid()
    folder = create_run_folder(parent)
    claim = FolderClaim(folder)
    sweep([parent])
    try:
        yield folder
    finally:
        if pid == os.getpid():  # a forked child leaves the folder to its parent
            shutil.rmtree(folder, ignore_errors=True)
        claim.close()


def sweep(parents: Iterable[Path]) -> None:
    """Remove the folders below `parents` whose owners are gone; only this user's, and never one that is in use."""
    for parent in parents:
        for folder in parent.glob("ropewalk-*"):
            if is_ours(folder):
                _sweep(folder)


def is_ours(folder: Path) -> bool:
    """Whether it is a folder of this user that no other user can enter."""
    try:
        facts = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o077


def _sweep(folder: Path) -> None:
    try:
        fd = os.open(folder / CLAIM, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # the folder has no claim, or has just gone
        return
    try:
        boot = os.read(fd, 64).decode(errors="replace")
        if boot and boot == boot_id():
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # its owner lives
        pass
    finally:
        os.close(fd)
