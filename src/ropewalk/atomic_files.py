"""Files and folders that are written whole or not at all, for this user alone.

    StagedFile     .NAME.<boot>-<random> ─▶ content ─▶ fsync ─▶ rename to NAME ─▶ fsync of the folder
    StagedFolder   NAME.tmp, or the like ─▶ files   ─▶ fsync ─▶ rename to NAME ─▶ fsync of the folder above

A process may be killed, the disk may fill up and the machine may lose its power at any moment: NAME holds the old
content or the new one, whole. The rename is the only step that counts.

The writer holds a lock (flock) on what it stages, which the kernel releases when the process ends, whatever kills it.
A staged file that nobody has locked was left by a writer that died, and the next writer of the same name removes it. A
process id would not tell: ids are given out again, and mean something else in each container. The name of a staged file
says on which kernel its lock was taken, because some network drives do not tell of the locks of other hosts; a file
that another kernel has left is removed when it has not changed for a day.

Folders may be shared with other users of the machine: a name that is staged cannot be guessed, nothing that lies there
is opened or written through, and a link in the place of NAME is replaced and not followed. Files have mode 0600 under
any umask, unless the caller says otherwise. `trusted_files` says which files may be read again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable
from io import BufferedWriter
from pathlib import Path
from types import TracebackType
from typing import Self

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STAGED = re.compile(r"([0-9a-f]{8})-[0-9a-f]{8}")
_NO_BOOT = "00000000"
#: Of the name that a staged file will have; with what is added, a name must not have more than 255 bytes.
_MOST_NAME_BYTES = 200
#: How many random names are tried; one is nearly always enough.
_NAME_ATTEMPTS = 16
#: No writer of another kernel goes on for longer.
_OLD_S = 24 * 3600.0


# --- files ------------------------------------------------------------------------------------------------------------


def open_new_file(path: Path | str, mode: int = 0o600) -> BufferedWriter:
    """Open a new file for writing that only this user can read, whatever the umask is.

    Args:
        path: of the file.
        mode: for files that others may read, too, unless the umask says otherwise.

    Raises:
        FileExistsError: something of that name is there already, be it a dangling link.
        OSError: it cannot be made; nothing is left of it.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:  # an umask may have taken our own rights away; it can never have added any
        os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode) | 0o600)
    except BaseException:
        os.close(descriptor)
        os.unlink(path)
        raise
    return open(descriptor, "wb")


def write_new_file(
    path: Path | str, parts: Iterable[bytes | bytearray | memoryview], *, mode: int = 0o600, durable: bool = True
) -> int:
    """Write a new file under its own name, where nothing reads it before it is whole.

    Args:
        path: of the file.
        parts: its content, one after the other.
        mode: as of `open_new_file`.
        durable: return when it is on the disk.

    Returns:
        The size of the file in bytes.

    Raises:
        FileExistsError: something of that name is there already, be it a dangling link; it stays as it is.
        OSError: the file cannot be written; nothing is left of it.
    """
    file = open_new_file(path, mode)
    try:
        with file:
            size_bytes = sum(map(file.write, parts))
            if durable:
                file.flush()
                os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)  # a full disk needs the room
        raise
    return size_bytes


def replace_file(path: Path, parts: Iterable[bytes | bytearray | memoryview]) -> int:
    """Write a file for this user alone, so that `path` holds the old or the new one whole; returns its size in bytes.

    Args:
        path: of the file; its folder exists.
        parts: its content, one after the other.

    Raises:
        OSError: it cannot be written; what was there before is still there.
    """
    with StagedFile(path) as staged:
        size_bytes = sum(map(staged.file.write, parts))
        staged.commit()
    return size_bytes


def write_locked_file(path: Path, content: bytes) -> StagedFile:
    """Write a file that is locked from before it is seen until it is closed, or this process has ended.

    Raises:
        OSError: it cannot be written, or there are no locks here; what was there before is still there.
    """
    staged = StagedFile(path, durable=False)
    try:
        if not staged.is_locked:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK), str(path))
        staged.file.write(content)
        staged.commit()
    except BaseException:
        staged.close()
        raise
    return staged


class StagedFile:
    """A file that is being written, for this user alone; until `commit`, `path` holds what it held before.

    The end of `with`, or `close`, removes what was not committed. Removes what writers of the same `path` have left
    that were killed. A child of this process may write as well, before `commit` is called here.

    Args:
        path: of the file; its folder exists.
        durable: what is committed is on the disk, and outlives a loss of power.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self.path = path
        self._durable = durable
        _remove_left_files(path)
        for _ in range(_NAME_ATTEMPTS):
            self._staged = path.with_name(f"{_stem(path)}{boot_id()[:8] or _NO_BOOT}-{os.urandom(4).hex()}")
            try:
                self.file = open_new_file(self._staged)
            except FileExistsError:
                continue
            with contextlib.suppress(BlockingIOError):
                #: Whether the file has a lock, from before it is seen under `path`; there may be no locks here.
                self.is_locked = _lock(self.file.fileno())
                if _is_at(self.file.fileno(), self._staged):
                    break
            self.file.close()  # another writer took it, when it had no lock yet, for one that was left
        else:
            raise FileExistsError(f"{_NAME_ATTEMPTS} names beside {path} were all taken; somebody may be planting them")
        self._is_staged = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def commit(self, *, previous: Path | None = None) -> None:
        """Make it the file at `path`. It stays open, and locked, until `close`.

        Args:
            previous: what was at `path` gets this name, in the same folder.

        Raises:
            OSError: it does not become that; what was there before is still there, if need be as `previous`.
        """
        self.file.flush()
        if self._durable:
            os.fsync(self.file.fileno())
        if previous is not None:
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.path, previous)
        os.replace(self._staged, self.path)
        self._is_staged = False
        if self._durable:
            sync_folder(self.path.parent)

    def close(self) -> None:
        """Let go of it; may be called twice."""
        if self._is_staged:
            self._is_staged = False
            with contextlib.suppress(OSError):  # the first error says what is wrong
                os.unlink(self._staged)  # before it is closed: a full disk needs the room
        with contextlib.suppress(OSError):
            self.file.close()


def _remove_left_files(path: Path) -> None:
    """Remove what writers of `path` have left that died."""
    stem = _stem(path)
    with os.scandir(path.parent) as entries:
        found = [(entry.name, known) for entry in entries if (known := _staged_under(stem, entry.name))]
    for name, boot in found:
        staged = path.with_name(name)
        if boot == boot_id()[:8]:
            remove_left(staged)
        else:
            _remove_old(staged)


def _stem(path: Path) -> str:
    return "." + os.fsdecode(os.fsencode(path.name)[:_MOST_NAME_BYTES]) + "."


def _staged_under(stem: str, name: str) -> str:
    """The boot in the name of a staged file; empty if `name` is not one with this stem."""
    found = _STAGED.fullmatch(name.removeprefix(stem)) if name.startswith(stem) else None
    return found[1] if found else ""


def _remove_old(staged: Path) -> None:
    with contextlib.suppress(OSError):
        facts = os.lstat(staged)
        if facts.st_uid == os.geteuid() and stat.S_ISREG(facts.st_mode) and facts.st_mtime < time.time() - _OLD_S:
            os.unlink(staged)


# --- folders ----------------------------------------------------------------------------------------------------------


class StagedFolder:
    """A folder that is being filled; until `commit`, there is nothing of it under its final name.

    The end of `with`, or `close`, removes what was not committed.

    Args:
        staged: the name until then. Others may have to find it, so the caller chooses it; `remove_left` removes it once
            its writer has died.
        path: the final name, in the same folder.
        mode: rights of others need the umask's permission as well.
        durable: what is committed is on the disk, and outlives a loss of power. Its files are the caller's part.

    Raises:
        FileExistsError: `staged` is there already, be it a dangling link; or it was one that another writer removes.
        OSError: it cannot be made.
    """

    def __init__(self, staged: Path, path: Path, *, mode: int = 0o700, durable: bool = True) -> None:
        self.staged = staged
        self.path = path
        self._durable = durable
        os.mkdir(staged, mode | 0o700)
        # An umask may have taken our own rights away; nobody else can have put another one there meanwhile.
        os.chmod(staged, stat.S_IMODE(os.lstat(staged).st_mode) | 0o700)
        self._lock = _lock_of(staged)
        self._is_staged = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def commit(self) -> None:
        """Give it its final name.

        Raises:
            OSError: it does not get it; for one, because a folder of that name is there that is not empty.
        """
        if self._durable:
            sync_folder(self.staged)
        os.rename(self.staged, self.path)
        self._is_staged = False
        if self._durable:
            sync_folder(self.path.parent)

    def close(self) -> None:
        """Let go of it; may be called twice."""
        if self._is_staged:
            self._is_staged = False
            shutil.rmtree(self.staged, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_folder(path: Path, staged: Path) -> None:
    """Remove a folder that was committed, which first gets its staged name back: half of one is never taken for whole.

    Raises:
        OSError: it cannot be removed, or not all of it.
    """
    os.rename(path, staged)
    shutil.rmtree(staged)


# --- what writers have left -------------------------------------------------------------------------------------------


def remove_left(staged: Path) -> None:
    """Remove a staged file or folder of this user if its writer, which must have been on this kernel, has died.

    Where there are no locks, it stays. Links are not followed.
    """
    with contextlib.suppress(OSError):  # its writer lives, or another one was quicker
        lock = _lock_of(staged)
        if lock is None:
            return
        try:
            facts = os.fstat(lock)
            if facts.st_uid == os.geteuid() and _is_at(lock, staged):
                if stat.S_ISDIR(facts.st_mode):
                    shutil.rmtree(staged, ignore_errors=True)
                else:
                    os.unlink(staged)
        finally:
            os.close(lock)


def _lock_of(path: Path) -> int | None:
    """The descriptor of a lock on a file or folder; None where there are no locks.

    Raises:
        FileExistsError: another process has it.
        OSError: it is not there, or is a link.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if _lock(descriptor):
            return descriptor
    except BlockingIOError:
        os.close(descriptor)
        raise FileExistsError(errno.EEXIST, "another process has locked it", str(path)) from None
    os.close(descriptor)
    return None


def _lock(descriptor: int) -> bool:
    """Lock a file or folder until its descriptor is closed; False where there are no locks.

    Raises:
        BlockingIOError: another process has it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether a file or folder still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


@functools.cache
def boot_id() -> str:
    """Names this run of this kernel, on which locks mean something; empty if it has no name."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last through a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
