"""Files and folders that are written whole or not at all, for this user alone.

    StagedFile     .NAME.<boot>-<random> ─▶ content ─▶ fsync ─▶ rename to NAME ─▶ fsync of the folder
    StagedFolder   NAME.tmp, or the like ─▶ files   ─▶ fsync ─▶ rename to NAME ─▶ fsync of the folder above

A process may be killed, the disk may fill up and the machine may lose power at any moment: NAME holds either the old
content or the new content, complete. The rename is the commit.

The writer holds a lock (flock) on the staged file, which the kernel releases when the process ends, whatever kills it.
A staged file without a lock was left by a writer that died, and the next writer of the same name removes it. A process
id would not show this: ids are reused, and differ between containers. The name of a staged file contains the boot id of
the kernel on which the lock was taken, because some network file systems do not report the locks of other hosts; a file
from another kernel is removed once it has not changed for a day.

Folders may be shared with other users of the machine: a staged name cannot be guessed, existing files are never opened
or written through, and a link at NAME is replaced and not followed. Files have mode 0600 under any umask, unless the
caller chooses another mode. `trusted_files` decides which files are safe to read back.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import re
import resource
import shutil
import stat
import time
from collections.abc import Callable, Generator, Iterable
from io import BufferedWriter
from pathlib import Path
from types import TracebackType
from typing import Self

from ropewalk.trusted_files import open_new_folder

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STAGED = re.compile(r"([0-9a-f]{8})-[0-9a-f]{8}")
_NO_BOOT = "00000000"
_MOST_NAME_BYTES = 200
"""Limit for the final name, in bytes: with the prefix and suffix of a staged file it must stay within 255 bytes."""
_NAME_ATTEMPTS = 16
"""How many random names are tried; one is nearly always enough."""
_OLD_S = 24 * 3600.0
"""Seconds after which a staged file from another kernel counts as abandoned."""
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
"""Of renameat2(2)."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


# --- files ------------------------------------------------------------------------------------------------------------


def open_new_file(path: Path | str, mode: int = 0o600) -> BufferedWriter:
    """Open a new file for writing that only this user can read, whatever the umask is.

    Args:
        path: path of the file.
        mode: permission bits; the default is private, and the umask still applies to the bits for other users.

    Returns:
        The open file.

    Raises:
        FileExistsError: the path already exists, even as a dangling link.
        OSError: the file cannot be created; nothing is left of it.
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
    """Write a new file under its final name, for places where nothing reads it before it is complete.

    Args:
        path: path of the file.
        parts: the content, as consecutive buffers.
        mode: permission bits, as in `open_new_file`.
        durable: whether to sync the file to disk before returning.

    Returns:
        The size of the file in bytes.

    Raises:
        FileExistsError: the path already exists, even as a dangling link; it is left unchanged.
        OSError: the file cannot be written; nothing is left of it.
    """
    file = open_new_file(path, mode)
    try:
        with file:
            size_bytes = sum(map(file.write, parts))
            if durable:
                file.flush()
                os.fsync(file.fileno())
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(path)  # free the space: the disk may be full
        if told := _no_room(error, Path(path)):
            raise told from error
        raise
    return size_bytes


def replace_file(path: Path, parts: Iterable[bytes | bytearray | memoryview]) -> int:
    """Replace a file atomically; only this user can read the new one.

    Args:
        path: path of the file; its folder must exist.
        parts: the content, as consecutive buffers.

    Returns:
        The size of the file in bytes.

    Raises:
        OSError: the file cannot be written; the previous file is still there.
    """
    with StagedFile(path) as staged:
        size_bytes = sum(map(staged.file.write, parts))
        staged.commit()
    return size_bytes


def write_locked_file(path: Path, content: bytes) -> StagedFile:
    """Write a file that is locked before it becomes visible, until it is closed or this process ends.

    Args:
        path: path of the file; its folder must exist.
        content: the whole content.

    Returns:
        The committed file; closing it releases the lock.

    Raises:
        OSError: the file cannot be written, or the file system has no locks; the previous file is still there.
    """
    staged = StagedFile(path, durable=False)
    try:
        if not staged.is_locked:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK), str(path))
        staged.file.write(content)
        staged.commit()
    except BaseException as error:
        staged.close()
        if told := _no_room(error, path):
            raise told from error
        raise
    return staged


class StagedFile:
    """A file that is being written, for this user alone; `path` keeps its previous content until `commit`.

    The end of `with`, or `close`, removes a file that was not committed. The constructor removes staged files that
    killed writers of the same `path` left. A child of this process may write to the file, too, before `commit` is
    called here.

    Args:
        path: path of the file; its folder must exist.
        durable: whether the committed file is synced to disk, so that it survives a loss of power.

    Raises:
        OSError: the file cannot be created.
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self.path = path
        self._durable = durable
        _remove_left_files(path)
        for _ in range(_NAME_ATTEMPTS):
            self.staged = path.with_name(f"{_stem(path)}{boot_id()[:8] or _NO_BOOT}-{os.urandom(4).hex()}")
            """Its path until `commit`."""
            try:
                self.file = open_new_file(self.staged)
            except FileExistsError:
                continue
            with contextlib.suppress(BlockingIOError):
                self.is_locked = _lock(self.file.fileno())
                """Whether the file was locked before it became visible under `path`; the file system may lack locks."""
                if is_at(self.file.fileno(), self.staged):
                    break
            self.file.close()  # another writer removed it as abandoned, before it was locked
        else:
            raise FileExistsError(f"{_NAME_ATTEMPTS} names beside {path} were all taken; somebody may be planting them")
        self._is_staged = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        if told := _no_room(error, self.path):
            raise told from error

    def commit(self, *, previous: Path | None = None) -> None:
        """Move the file to `path`. It stays open, and locked, until `close`.

        Args:
            previous: a name in the same folder, to which the previous file at `path` is moved; None replaces it.

        Raises:
            OSError: the file cannot be moved; the previous file is still there, possibly under the name `previous`.
        """
        self.file.flush()
        if self._durable:
            os.fsync(self.file.fileno())
        if previous is not None:
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.path, previous)
        os.replace(self.staged, self.path)
        self._is_staged = False
        if self._durable:
            sync_folder(self.path.parent)

    def close(self) -> None:
        """Close it, and remove it if it was not committed; may be called twice."""
        if self._is_staged:
            self._is_staged = False
            with contextlib.suppress(OSError):  # the first error is the one to report
                os.unlink(self.staged)  # before it is closed: frees the space if the disk is full
        with contextlib.suppress(OSError):
            self.file.close()


@contextlib.contextmanager
def told_of_room(path: Path, file: BufferedWriter) -> Generator[None]:
    """Let the error of a write for which there is no room name the file and the bytes, which the kernel leaves out.

    Args:
        path: path of the file, for people.
        file: what is written to; it lies in the same folder, perhaps under another name.
    """
    try:
        yield
    except OSError as error:
        held_bytes = os.fstat(file.fileno()).st_blocks * 512  # the unit of POSIX, whatever blocks the disk has
        if told := _no_room(error, path, held_bytes):
            raise told from error
        raise


def _no_room(error: BaseException | None, path: Path, held_bytes: int = 0) -> OSError | None:
    """Return the error of a write for which there was no room, with the file and the bytes.

    Args:
        error: what was raised.
        path: path of the file.
        held_bytes: what was written of it and is still there, so that it counts as free.

    Returns:
        None if it is another error, or names a file already.
    """
    if not isinstance(error, OSError) or error.errno not in _NO_ROOM or error.filename is not None:
        return None
    reason = error.strerror or os.strerror(error.errno)
    if error.errno == errno.ENOSPC:
        with contextlib.suppress(OSError):
            disk = os.statvfs(path.parent)
            reason += f" (the {disk.f_bavail * disk.f_frsize + held_bytes:,} bytes that are free there are too few)"
    elif error.errno == errno.EFBIG:
        reason += f" (this process may write files of at most {resource.getrlimit(resource.RLIMIT_FSIZE)[0]:,} bytes)"
    return OSError(error.errno, reason, str(path))


def _remove_left_files(path: Path) -> None:
    """Remove the staged files that dead writers of `path` left."""
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
    """Return the boot id in the name of a staged file; empty if `name` is not a staged name with this stem."""
    found = _STAGED.fullmatch(name.removeprefix(stem)) if name.startswith(stem) else None
    return found[1] if found else ""


def _remove_old(staged: Path) -> None:
    with contextlib.suppress(OSError):
        facts = os.lstat(staged)
        if facts.st_uid == os.geteuid() and stat.S_ISREG(facts.st_mode) and facts.st_mtime < time.time() - _OLD_S:
            os.unlink(staged)


# --- folders ----------------------------------------------------------------------------------------------------------


class StagedFolder:
    """A folder that is being filled; its final name does not exist until `commit`.

    The end of `with`, or `close`, removes a folder that was not committed.

    Args:
        staged: the path until `commit`. Other processes may have to find it, so the caller chooses it; `remove_left`
            removes it once its writer has died.
        path: the final path, in the same parent folder.
        mode: permission bits; the umask still applies to the bits for other users.
        durable: whether the rename is synced to disk, so that it survives a loss of power. The caller syncs the files.

    Raises:
        FileExistsError: `staged` already exists, even as a dangling link; or another writer is removing it.
        OSError: the folder cannot be created.
    """

    def __init__(self, staged: Path, path: Path, *, mode: int = 0o700, durable: bool = True) -> None:
        self.staged = staged
        self.path = path
        self._durable = durable
        self._folder = open_new_folder(staged, mode)
        try:
            _lock(self._folder)
            if not is_at(self._folder, staged):  # not locked yet, it looked like one that a dead writer has left
                raise FileExistsError(errno.EEXIST, "another writer has removed it", str(staged))
        except BaseException as error:
            os.close(self._folder)
            if isinstance(error, BlockingIOError):
                raise FileExistsError(errno.EEXIST, "another process has locked it", str(staged)) from None
            raise
        self._is_staged = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def commit(self) -> None:
        """Rename the folder to its final name.

        Raises:
            OSError: the rename failed, for example because a folder that is not empty already has that name.
        """
        if self._durable:
            sync_folder(self.staged)
        self._take_place()

    def commit_in_place_of(self, old: Path) -> None:
        """Rename the folder to its final name, which a committed one has; that one is removed afterwards.

        A process that is killed at any moment leaves one of them, whole. Where the file system cannot exchange two
        names at once, as NFS cannot, there is a moment between two renames at which neither has the final name.

        Args:
            old: the staged name that the other folder gets there, in the same parent folder; as that of
                `remove_folder`.

        Raises:
            OSError: a folder cannot be renamed, and all is as it was; or the other one cannot be removed.
        """
        if self._durable:
            sync_folder(self.staged)
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if _exchange(self.staged, self.path):
                old, self._is_staged = self.staged, False
                if self._durable:
                    sync_folder(self.path.parent)
            else:
                self._rename_both(old)
            remove_open(folder, old)
        finally:
            os.close(folder)

    def _rename_both(self, old: Path) -> None:
        os.rename(self.path, old)
        try:
            self._take_place()
        except BaseException:
            if self._is_staged:
                os.rename(old, self.path)
            raise

    def _take_place(self) -> None:
        os.rename(self.staged, self.path)
        self._is_staged = False
        if self._durable:
            sync_folder(self.path.parent)

    def close(self) -> None:
        """Close it, and remove it if it was not committed; may be called twice."""
        if self._is_staged:
            self._is_staged = False
            with contextlib.suppress(OSError):  # the first error is the one to report
                remove_open(self._folder, self.staged)
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1


def remove_folder(path: Path, staged: Path, mark: str = "") -> None:
    """Remove a committed folder; it gets its staged name back first, so a half-removed folder never looks complete.

    Args:
        path: the committed folder.
        staged: the staged name, in the same parent folder.
        mark: name of a file that each such folder holds; without it, the folder is left as it is.

    Raises:
        OSError: the folder cannot be removed, or not completely.
    """
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if mark:
            os.stat(mark, dir_fd=folder, follow_symlinks=False)
        os.rename(path, staged)
        remove_open(folder, staged)
    finally:
        os.close(folder)


def remove_open(folder: int, path: Path) -> None:
    """Remove an open folder.

    What is in it is removed through the descriptor: where others may rename folders, another one may be at its path.

    Args:
        folder: its descriptor, which stays open.
        path: its path.

    Raises:
        OSError: it cannot be removed, or not completely.
    """
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if is_folder:
            shutil.rmtree(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
    os.rmdir(path)  # of another one, only if nothing is in it


def _exchange(one: Path, other: Path) -> bool:
    """Let two files or folders have each other's name from one moment on; returns whether that is possible here.

    Raises:
        OSError: one of them is not there, or may not be renamed.
    """
    import ctypes  # only here, as its import takes 3 ms

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:  # a C library other than glibc, or an old one
        return False
    here = ctypes.c_int(_AT_FDCWD)
    if rename(here, os.fsencode(one), here, os.fsencode(other), ctypes.c_uint(_RENAME_EXCHANGE)) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):  # of this file system, or of the kernel
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


# --- what writers have left -------------------------------------------------------------------------------------------


def remove_left(staged: Path, is_ours: Callable[[str], bool] = lambda name: True) -> None:
    """Remove a staged file or folder of this user if its writer, which must have run on this kernel, has died.

    Nothing is removed on a file system without locks. Links are not followed.

    Args:
        staged: the staged file or folder; it need not exist.
        is_ours: whether a writer makes files of a name in such a folder. One with anything else in it is left as it is:
            where others may rename folders, they could have given any folder of this user the staged name.
    """
    with contextlib.suppress(OSError):  # its writer is alive, or another process removed it first
        lock = _lock_of(staged)
        if lock is None:
            return
        try:
            facts = os.fstat(lock)
            if facts.st_uid == os.geteuid() and is_at(lock, staged):
                if stat.S_ISDIR(facts.st_mode):
                    if all(map(is_ours, os.listdir(lock))):
                        remove_open(lock, staged)
                else:
                    os.unlink(staged)
        finally:
            os.close(lock)


def _lock_of(path: Path) -> int | None:
    """Lock a file or folder and return the descriptor that holds the lock; None if the file system has no locks.

    Raises:
        FileExistsError: another process holds the lock.
        OSError: the path does not exist, or is a link.
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
    """Lock a file or folder until its descriptor is closed; False if the file system has no locks.

    Raises:
        BlockingIOError: another process holds the lock.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file or folder is still the one at a path.

    Args:
        descriptor: of the open one.
        path: the path, which need not exist any more.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


@functools.cache
def boot_id() -> str:
    """Return the id of the current boot of this kernel, within which locks are valid; empty if it is not known."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def sync_folder(folder: Path) -> None:
    """Sync the entries of a folder to disk, so that they survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
