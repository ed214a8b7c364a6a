"""Files that decide which code runs: settings, pickles, records of jobs. They are read if nobody else can write them.

    /                            root's, and others may not write
    └── tmp                      others may write, but its sticky bit keeps them from renaming what is not theirs
        └── work                 ours or root's, and closed to other writers
            └── ropewalk.toml    the same; opened without following a link, and looked at again once it is open

`open_trusted` walks the whole way, from the root downwards. Once a folder is known to be safe, only this user and root
can replace what lies in it, so a check does not become stale before the next one. Symbolic links are followed where
their owner is trusted. `open_own` looks at the file and its folder alone: enough for data that this user has written
earlier, in a folder that may lie in the shared folder of a project.

Folders that are made here only this user can enter, whatever the umask is; `atomic_files` writes what lies in them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import deque
from io import BufferedReader
from pathlib import Path

from ropewalk.errors import FileNotTrusted

_GROUP_WRITES, _OTHERS_WRITE = stat.S_IWGRP, stat.S_IWOTH
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # not blocking: a pipe would wait for its writer
#: As many as the kernel itself follows.
_MOST_LINKS = 40
_UID_MAP = Path("/proc/self/uid_map")
_OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")


# --- reading ----------------------------------------------------------------------------------------------------------
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_trusted(path: Path | str) -> BufferedReader:
    """Open a file that nobody but this user and root can have written, nor put another one in its place.

    Raises:
        FileNotTrusted: somebody could; says what has to be changed.
        FileNotFoundError, OSError: it cannot be opened, or is no regular file.
    """
    where = locate(path)
    return _opened(os.open(where, _READ), path, where)


def open_own(path: Path | str) -> BufferedReader:
    """Open a file that nobody but this user and root can have written, in a folder of which the same is true.

    Raises:
        FileNotTrusted: somebody could; says what has to be changed.
        FileNotFoundError, OSError: it cannot be opened, is a link, or is no regular file.
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
    """What is in a file; raises as `open_trusted`."""
    with open_trusted(path) as file:
        return file.read()


def check_trusted(path: Path | str) -> None:
    """Look at a file without reading it; raises as `open_trusted`."""
    open_trusted(path).close()


def _opened(descriptor: int, path: Path | str, where: str) -> BufferedReader:
    try:
        facts = os.fstat(descriptor)
        if not is_trusted_owner(facts.st_uid):
            raise _belongs_to_another(path, where, facts)
        if _lets_others_write(facts):
            raise _lets_in_writers(path, where, facts)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return open(descriptor, "rb")


def locate(path: Path | str) -> str:
    """The physical path of a file, which need not exist, once the way to it is known to be safe.

    Raises:
        FileNotTrusted: it, or a folder or link on the way, is of another user, or others may replace what lies there.
        FileNotFoundError, NotADirectoryError: a folder on the way is missing.
        OSError: the way cannot be walked.
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
        # As in sshd: whoever may replace the home folder has everything else in it, too.
        if (ahead and not f"{home}/".startswith(f"{place}/")) or place == home:
            _check_folder(path, place, facts)
        if not ahead and not is_trusted_owner(facts.st_uid):  # before it is opened, which may be forbidden or wait
            raise _belongs_to_another(path, place, facts)
        here = place
    return here


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


# --- who may write ----------------------------------------------------------------------------------------------------


def is_trusted_owner(uid: int) -> bool:
    """Whether what this user has written may decide what runs: it is the user of this process, or root."""
    return uid in (0, os.geteuid())


def owns_folders(uid: int) -> bool:
    """Whether folders of this user may be on the way to a file of ours.

    Those of root may. Inside a user namespace (Apptainer, rootless containers) `/` and `/tmp` seem to belong to the
    user that stands for all who have no number there; elsewhere that number is `nobody`, a user like others.
    """
    return is_trusted_owner(uid) or (_UID_MAP.exists() and uid == _number(_OVERFLOW_UID) and _lacks_numbers())


def _lacks_numbers() -> bool:
    """Whether this is a user namespace in which not every user has a number."""
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
    """Whether a group is the one that many systems make for each user, with an umask that lets it write."""
    import grp  # here: hardly any file needs it
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
    """Make a folder as `make_folder` does, in which only this user and root can put and replace files.

    Raises:
        FileNotTrusted: it is there, and another user can.
        OSError: it cannot be made.
    """
    make_folder(folder)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check_folder(folder, str(folder), os.fstat(descriptor))
    finally:
        os.close(descriptor)


def make_folder(folder: Path | str) -> None:
    """Make a folder that only this user can enter, and those above it that are missing; the umask does not matter.

    One that is there already keeps its mode.

    Raises:
        OSError: it cannot be made, or is no folder.
    """
    missing: list[str] = []
    there = str(folder)
    while not os.path.lexists(there) and there:
        missing.append(there)
        there = os.path.dirname(there)
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process was quicker
            os.mkdir(each, 0o700)
            os.chmod(each, 0o700)  # for an umask that took our own rights away
    if not os.path.isdir(folder):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def open_to_append(path: Path | str) -> int:
    """The descriptor of a file that grows, which is made with mode 0600 if it is not there.

    Follows no link, and does not wait for the reader of a pipe.

    Raises:
        FileNotTrusted: it is there, and belongs to another user, who could read what is written.
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, _APPEND, 0o600)
    facts = os.fstat(descriptor)
    if is_trusted_owner(facts.st_uid):
        return descriptor
    os.close(descriptor)
    raise _belongs_to_another(path, str(path), facts)
