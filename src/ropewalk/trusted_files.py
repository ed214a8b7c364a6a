"""Reading of files that decide which code runs (settings, pickles, job records), if no other user can write them.

    /                            owned by root, and not writable for others
    └── tmp                      writable for others, but the sticky bit keeps them from renaming files of other users
        └── work                 owned by this user or root, and not writable for others
            └── ropewalk.toml    the same; opened without following a link, and checked again once it is open

`open_trusted` checks every folder of the path, from the root downwards. Once a folder is known to be safe, only this
user and root can replace its entries, so a check does not become stale before the next one. Symbolic links are followed
if their owner is trusted. `open_own` checks only the file and its folder: enough for data that this user has written
earlier, in a folder that may be inside the shared folder of a project.

Folders that this module creates are private to this user, whatever the umask is; `atomic_files` writes the files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import deque
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path

from ropewalk.errors import FileNotTrusted

_GROUP_WRITES, _OTHERS_WRITE = stat.S_IWGRP, stat.S_IWOTH
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # not blocking: a pipe would wait for its writer
_MOST_LINKS = 40
"""The number of symbolic links that the kernel itself follows."""
_UID_MAP = Path("/proc/self/uid_map")
_OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")


# --- reading ----------------------------------------------------------------------------------------------------------
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_trusted(path: Path | str) -> BufferedReader:
    """Open a file that only this user and root can have written or replaced.

    Args:
        path: path of the file.

    Returns:
        The file, open for reading in binary mode.

    Raises:
        FileNotTrusted: another user could have written or replaced it; the message says what to change.
        FileNotFoundError, OSError: the file cannot be opened, or is not a regular file.
    """
    where = locate(path)
    return _opened(os.open(where, _READ), path, where)


def open_own(path: Path | str) -> BufferedReader:
    """Open a file that only this user and root can have written, in a folder that only they can change.

    Args:
        path: path of the file.

    Returns:
        The file, open for reading in binary mode.

    Raises:
        FileNotTrusted: another user could have written or replaced it; the message says what to change.
        FileNotFoundError, OSError: the file cannot be opened, is a link, or is not a regular file.
    """
    path = Path(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check_folder(path, str(path.parent), os.fstat(folder))
        file = os.open(path.name, _READ, dir_fd=folder)
    finally:
        os.close(folder)
    return _opened(file, path, str(path))


def read_trusted(path: Path | str) -> bytes:
    """Read the content of a file; raises as `open_trusted`."""
    with open_trusted(path) as file:
        return file.read()


def check_trusted(path: Path | str) -> None:
    """Check a file without reading it; raises as `open_trusted`."""
    open_trusted(path).close()


def check_unopened(path: Path | str) -> str:
    """Check a file as `open_trusted` does, without opening it.

    For files on which this process may hold POSIX locks, as SQLite does: the kernel drops all of them when any
    descriptor of the file is closed.

    Args:
        path: path of the file.

    Returns:
        The physical path of the file. Nobody but this user and root can replace or change it.

    Raises:
        FileNotTrusted: another user could have written or replaced it; the message says what to change.
        FileNotFoundError, OSError: it does not exist, or is not a regular file.
    """
    where = locate(path)
    _check_file(os.lstat(where), path, where)
    return where


def check_unshared(path: Path | str) -> None:
    """Check that only this user and root can put other files beside a file, in a folder that `check_unopened` accepts.

    A sticky folder keeps other users from replacing the file, but not from making files with names beside its own, such
    as the logs that SQLite looks for.

    Args:
        path: physical path of the file, which need not exist.

    Raises:
        FileNotTrusted: another user can.
        OSError: there is no such folder.
    """
    folder = os.path.dirname(path)
    facts = os.stat(folder)
    if _lets_others_write(facts):
        raise _not_trusted(
            path,
            folder,
            facts,
            "must not let other users put files beside this one",
            f"use a folder of your own, such as a new one in {folder}",
        )


def _check_file(facts: os.stat_result, path: Path | str, where: str) -> None:
    if not is_trusted_owner(facts.st_uid):
        raise _belongs_to_another(path, where, facts)
    if _lets_others_write(facts):
        raise _lets_in_writers(path, where, facts)
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def _opened(descriptor: int, path: Path | str, where: str) -> BufferedReader:
    try:
        _check_file(os.fstat(descriptor), path, where)
    except BaseException:
        os.close(descriptor)
        raise
    return open(descriptor, "rb")


def locate(path: Path | str, *, is_folder: bool = False) -> str:
    """Return the physical path of a file, which need not exist, after checking every folder and link of the path.

    Args:
        path: path of the file.
        is_folder: whether it is a folder, which is checked like those above it.

    Raises:
        FileNotTrusted: the file, or a folder or link of the path, belongs to another user, or others may replace it.
        FileNotFoundError, NotADirectoryError: a folder of the path is missing.
        OSError: the path cannot be resolved.
    """
    path = str(path)
    home = os.path.realpath(os.path.expanduser("~"))
    ahead = deque(_parts(path if os.path.isabs(path) else os.path.join(os.getcwd(), path)))
    here, num_links = "/", 0
    while ahead:
        name = ahead.popleft()
        if name == "..":
            here = os.path.dirname(here)  # `here` holds no links, so this is the folder above it
            continue
        place = os.path.join(here, name)
        try:
            facts = os.lstat(place)
        except FileNotFoundError:
            if ahead:
                raise
            return place
        if stat.S_ISLNK(facts.st_mode):
            if not owns_folders(facts.st_uid):
                raise _belongs_to_another(path, place, facts)
            num_links += 1
            if num_links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(place)
            here = "/" if os.path.isabs(target) else here
            ahead.extendleft(reversed(_parts(target)))
            continue
        # Folders above the home folder are not checked, as in sshd: a user who may replace the home folder controls
        # everything in it anyway.
        is_file = not ahead and not is_folder
        if (not is_file and not f"{home}/".startswith(f"{place}/")) or place == home:
            _check_folder(path, place, facts)
        if is_file and not is_trusted_owner(facts.st_uid):  # before opening, which may be forbidden or block
            raise _belongs_to_another(path, place, facts)
        here = place
    return here


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


# --- who may write ----------------------------------------------------------------------------------------------------


def is_trusted_owner(uid: int) -> bool:
    """Whether files of this user may decide which code runs: the user is the one of this process, or root."""
    return uid in (0, os.geteuid())


def owns_folders(uid: int) -> bool:
    """Whether folders of this user may be part of the path of a trusted file.

    Folders of root may. Inside a user namespace (Apptainer, rootless containers), `/` and `/tmp` seem to belong to the
    overflow user, which stands for all users without an id there; elsewhere that id belongs to `nobody`, an ordinary
    user.
    """
    return is_trusted_owner(uid) or (_UID_MAP.exists() and uid == _number(_OVERFLOW_UID) and _lacks_numbers())


def _lacks_numbers() -> bool:
    """Whether this is a user namespace that does not map all user ids."""
    lines = _UID_MAP.read_text(encoding="ascii").splitlines()
    return [line.split() for line in lines] != [["0", "0", str(2**32 - 1)]]


def _number(file: Path) -> int:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return -1


def _check_folder(path: Path | str, folder: str, facts: os.stat_result) -> None:
    if not owns_folders(facts.st_uid):
        raise _belongs_to_another(path, folder, facts)
    if _lets_others_write(facts) and not facts.st_mode & stat.S_ISVTX:
        raise _lets_in_writers(path, folder, facts)


def _lets_others_write(facts: os.stat_result) -> bool:
    if facts.st_mode & _OTHERS_WRITE:
        return True
    return bool(facts.st_mode & _GROUP_WRITES) and not _is_group_of_one(facts.st_uid, facts.st_gid)


def _is_group_of_one(uid: int, gid: int) -> bool:
    """Whether a group is a user private group, which many systems create with an umask that lets the group write."""
    import grp  # imported here because few files need it
    import pwd

    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _belongs_to_another(path: Path | str, place: str, facts: os.stat_result) -> FileNotTrusted:
    own = os.geteuid()
    rule = f"must belong to {_user(own)}{' or root' if own else ''}"
    return _not_trusted(path, place, facts, rule, "if you trust it, copy it into a file and a folder of your own")


def _lets_in_writers(path: Path | str, place: str, facts: os.stat_result) -> FileNotTrusted:
    advice = f"chmod go-w {place}" + (", or move the file" if stat.S_ISDIR(facts.st_mode) else "")
    return _not_trusted(path, place, facts, "must not let other users write to it", advice)


def _not_trusted(path: Path | str, place: str, facts: os.stat_result, rule: str, advice: str) -> FileNotTrusted:
    mode = stat.S_IMODE(facts.st_mode)
    return FileNotTrusted(
        f"{path} is not used, because another user could have written it: {place} belongs to {_user(facts.st_uid)} "
        f"with mode {mode:04o}, and {rule}; {advice}",
        path=str(path),
        place=place,
        owner=facts.st_uid,
        mode=mode,
    )


def _user(uid: int) -> str:
    import pwd

    try:
        return f"user {pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return f"user {uid}"


# --- places to write to -----------------------------------------------------------------------------------------------


def make_private_folder(folder: Path | str) -> None:
    """Create a folder as `make_folder` does, and check that only this user and root can create and replace files in it.

    Raises:
        FileNotTrusted: the folder exists, and another user can.
        OSError: the folder cannot be created.
    """
    make_folder(folder)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check_folder(folder, str(folder), os.fstat(descriptor))
    finally:
        os.close(descriptor)


def open_new_folder(path: Path | str, mode: int = 0o700) -> int:
    """Create a folder whose owner has all permissions, whatever the umask is, and open it.

    Where others may rename what is in the folder above, they may put a link in its place at any moment; so nothing is
    done to it by its path.

    Args:
        path: path of the folder.
        mode: permission bits; the umask still applies to those for other users.

    Returns:
        The descriptor of the folder; the caller closes it.

    Raises:
        FileExistsError: the path exists already, or another user or process has replaced the new folder.
        OSError: it cannot be created.
    """
    os.mkdir(path, mode | 0o700)
    try:
        handle = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise FileExistsError(errno.EEXIST, "another process has removed or replaced it", str(path)) from None
    try:
        facts = os.fstat(handle)
        if facts.st_uid != os.geteuid():
            raise FileExistsError(errno.EEXIST, "another user has replaced it", str(path))
        itself = f"/proc/self/fd/{handle}"
        if facts.st_mode & 0o700 != 0o700:
            os.chmod(itself, stat.S_IMODE(facts.st_mode) | 0o700)
        return os.open(itself, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)


def make_temporary_folder(prefix: str, parents: Sequence[str] = ()) -> Path:
    """Create a folder for temporary files that only this user can enter, and that no other user can replace.

    A folder of `tempfile.mkdtemp` may be replaced by another one where `TMPDIR` is a folder in which others may rename
    what is in it, or lies below such a folder.

    Args:
        prefix: how its name begins.
        parents: folders in which it may be, the first one that is safe is taken; by default that of `tempfile`, then
            `/tmp`.

    Returns:
        Its path; the caller removes it.

    Raises:
        FileNotTrusted: in each of them another user could replace it; of the first one the message says what to change.
        OSError: it cannot be created.
    """
    import tempfile  # few processes need it

    first: FileNotTrusted | None = None
    for parent in parents or (tempfile.gettempdir(), "/tmp"):
        try:
            locate(parent, is_folder=True)
        except FileNotTrusted as error:
            first = first or error
            continue
        folder = tempfile.mkdtemp(prefix=prefix, dir=parent)
        os.chmod(folder, 0o700)  # the umask may have removed this user's own permissions
        return Path(folder)
    assert first
    raise first


def make_folder(folder: Path | str) -> None:
    """Create a folder that only this user can enter, and missing parent folders; the umask does not matter.

    An existing folder keeps its mode.

    Raises:
        OSError: the folder cannot be created, or the path is not a folder.
    """
    missing: list[str] = []
    there = str(folder)
    while not os.path.lexists(there) and there:
        missing.append(there)
        there = os.path.dirname(there)
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process created it first
            os.close(open_new_folder(each))
    if not os.path.isdir(folder):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def open_to_append(path: Path | str) -> int:
    """Open a file for appending, creating it with mode 0600 if it does not exist.

    Links are not followed, and the call does not wait for the reader of a pipe. Where other users may add files to the
    folder, the file must have no second name: they could have linked any file of this user there, where the kernel lets
    them (`fs.protected_hardlinks`).

    Raises:
        FileNotTrusted: the file exists and belongs to another user, who could read the appended data; or another user
            could have put it there.
        OSError: the file cannot be opened.
    """
    descriptor = os.open(path, _APPEND, 0o600)
    try:
        _check_output(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_output(path: Path | str) -> int:
    """Open a file for reading that a process of this user has appended to, as with `open_to_append`.

    What is read is shown, in a terminal and to visitors of the page. Where others may add files to the folder, they
    could put a link to any file of this user in its place, or a file of their own. Links are not followed, and the call
    does not wait for the writer of a pipe.

    Returns:
        Its descriptor, which the caller closes.

    Raises:
        FileNotTrusted: it belongs to another user; or another user could have put it there.
        OSError: it cannot be opened, or is not a regular file.
    """
    descriptor = os.open(path, _READ)
    try:
        facts = _check_output(descriptor, path)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_output(descriptor: int, path: Path | str) -> os.stat_result:
    facts = os.fstat(descriptor)
    if not is_trusted_owner(facts.st_uid):
        raise _belongs_to_another(path, str(path), facts)
    if facts.st_nlink > 1:
        folder = os.stat(Path(path).parent)
        if not is_trusted_owner(folder.st_uid) or _lets_others_write(folder):
            advice = f"remove {path}, or name another file"
            raise _not_trusted(path, str(path), facts, "must have no second name in a folder of others", advice)
    return facts
