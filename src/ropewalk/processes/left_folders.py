"""Removes folders that were left by processes that were killed.

A launcher's folder is removed by its agent on the same host, which outlives it. A program of threads has no agent, a
launcher on a cluster has none on its own host, and an agent on another host makes its own folder there; when one of
them is killed, its folder stays. So it holds a lock on a file in its folder, which the kernel releases however the
process ends. Folders whose file is not locked are removed by the next of these processes of this user on that host, and
by `ropewalk ps`.

A lock and not a process ID: IDs are reused, and mean something else in each container, while `/tmp` may be shared.
Locks are only tested on the kernel on which they were taken, as some network drives do not show the locks of other
machines. A folder without a claim, that of a launcher of this host, says too under which kernel it was made: nobody
listens at its sockets on another host that shares it, where `doctor --leftovers` must not take it for left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import stat
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path

from ropewalk.atomic_files import StagedFile, boot_id, remove_open, write_locked_file
from ropewalk.transport.credentials import create_run_folder

CLAIM = "owner.claim"
"""The file that the owner of a folder keeps locked."""
_MARK = "made.on"
"""The file of a folder without a claim that says where it was made."""
_MOST_BYTES = 512
_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FolderClaim:
    """Marks a folder as in use while this process lives, or until `close`."""

    def __init__(self, folder: Path) -> None:
        self._file: StagedFile | None = None
        try:
            self._file = write_locked_file(folder / CLAIM, _here())
        except OSError:  # locks are not supported: it is not claimed, and is removed only by `doctor --leftovers`
            mark_folder(folder)

    @property
    def descriptors(self) -> Sequence[int]:
        """The descriptors with which a child process has the claim too, until it ends."""
        return [self._file.file.fileno()] if self._file else []

    def close(self) -> None:
        """Release the claim: the folder is gone, or may be removed; may be called twice."""
        if self._file:
            self._file.close()


def mark_folder(folder: Path) -> None:
    """Note where a folder is made that is not claimed, for `made_elsewhere`."""
    with contextlib.suppress(OSError):  # a full disk: then it is listed if all processes are killed, and not removed
        (folder / _MARK).touch(0o600)
        (folder / _MARK).write_bytes(_here())


def made_elsewhere(folder: Path) -> str:
    """Return where a folder was made, in words, if that is not certainly this host since its start; empty if it is."""
    for name in (CLAIM, _MARK):
        with contextlib.suppress(OSError):
            boot, host = _origin(os.open(folder / name, _TO_READ))
            if boot and boot == boot_id():
                return ""
            if host == platform.node():
                return f"it was made on {host} before the last start of this machine, or on another one of that name"
            return f"it was made on {host or 'another host'}"
    return "it does not say on which host it was made"


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
            _sweep(folder)


def is_ours(folder: Path) -> bool:
    """Whether it is a folder of this user that no other user can enter."""
    try:
        facts = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and _is_private(facts)


def _is_private(facts: os.stat_result) -> bool:
    return facts.st_uid == os.geteuid() and not facts.st_mode & 0o077


def _here() -> bytes:
    """What a claim or mark says: the boot of the kernel, and the name of the host."""
    return f"{boot_id()} {platform.node()}".encode()


def _origin(fd: int) -> tuple[str, str]:
    """Read a claim or mark, and close it."""
    with open(fd, "rb", buffering=0) as file:
        boot, _, host = file.read(_MOST_BYTES).decode(errors="replace").partition(" ")
    return boot, host


def _sweep(folder: Path) -> None:
    # An error: it has no claim, its owner lives, or it is gone.
    with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
        inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        opened.callback(os.close, inside)
        if not _is_private(os.fstat(inside)):
            return
        fd = os.open(CLAIM, _TO_READ, dir_fd=inside)
        opened.callback(os.close, fd)
        boot, _ = _origin(os.dup(fd))
        if boot and boot == boot_id():
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_open(inside, folder)
