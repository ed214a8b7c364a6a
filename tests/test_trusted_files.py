"""Which files may decide what runs: real users, real links, real pipes."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ropewalk import trusted_files
from ropewalk.errors import FileNotTrusted
from ropewalk.trusted_files import (
    check_unopened,
    locate,
    make_private_folder,
    make_temporary_folder,
    open_new_folder,
    open_output,
    open_own,
    open_to_append,
    open_trusted,
    read_trusted,
)
from tests.other_users import ADA, MALLORY, as_user, needs_root


def plant(path: Path, text: str = "planted", mode: int = 0o644) -> None:
    path.write_text(text)
    path.chmod(mode)


def refused(path: Path, how: Callable[[Path], object] = read_trusted) -> FileNotTrusted:
    with pytest.raises(FileNotTrusted) as caught:
        how(path)
    return caught.value


def test_our_own_file_is_read_as_are_links_of_ours_to_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    plant(tmp_path / "real" / "file", "ours")
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "link").symlink_to(tmp_path / "folder" / ".." / "folder" / "file")
    assert read_trusted(tmp_path / "link") == b"ours"
    assert locate(tmp_path / "link") == os.path.realpath(tmp_path / "real" / "file")
    with open_own(tmp_path / "folder" / "file") as file:
        assert file.read() == b"ours"


def test_a_file_is_checked_without_being_opened(tmp_path: Path) -> None:
    """Closing a descriptor would drop the POSIX locks that this process has on the file."""
    plant(tmp_path / "file", mode=0o600)
    (tmp_path / "link").symlink_to("file")
    lock = os.open(tmp_path / "file", os.O_RDWR)
    fcntl.lockf(lock, fcntl.LOCK_EX)
    assert check_unopened(tmp_path / "link") == os.path.realpath(tmp_path / "file")
    held = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    probe = f"import fcntl, sys; print(fcntl.fcntl(open({str(tmp_path / 'file')!r}), fcntl.F_GETLK, {held!r})[:2])"
    found = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout
    os.close(lock)
    assert eval(found) == struct.pack("h", fcntl.F_WRLCK)
    plant(tmp_path / "open", mode=0o666)
    assert refused(tmp_path / "open", check_unopened).place == str(tmp_path / "open")
    with pytest.raises(OSError, match="it is not a regular file"):
        check_unopened(tmp_path)


def test_what_is_missing_is_missing_and_no_reason_for_suspicion(tmp_path: Path) -> None:
    for name in ("file", "folder/file"):
        for read in (open_trusted, open_own):
            with pytest.raises(FileNotFoundError):
                read(tmp_path / name)
    plant(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        open_trusted(tmp_path / "file" / "below")


def test_a_relative_path_is_walked_from_the_root_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "open" / "project").mkdir()
    plant(tmp_path / "open" / "project" / "file")
    monkeypatch.chdir(tmp_path / "open" / "project")
    error = refused(Path("file"))
    assert (error.place, error.mode) == (os.path.realpath(tmp_path / "open"), 0o777)


@pytest.mark.parametrize("mode", [0o666, 0o602, 0o646])
def test_a_file_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    plant(tmp_path / "file", mode=mode)
    for how in (open_trusted, open_own):
        error = refused(tmp_path / "file", how)
        assert (error.path, error.owner, error.mode) == (str(tmp_path / "file"), os.geteuid(), mode)
        assert f"mode {mode:04o}" in str(error) and f"chmod go-w {tmp_path / 'file'}" in str(error)


def test_a_folder_that_others_may_write_to_is_refused_unless_it_is_sticky(tmp_path: Path) -> None:
    plant(tmp_path / "file")
    tmp_path.chmod(0o777)
    assert refused(tmp_path / "file").place == os.path.realpath(tmp_path)
    assert refused(tmp_path / "file", open_own).mode == 0o777
    tmp_path.chmod(0o1777)
    assert read_trusted(tmp_path / "file") == b"planted"
    tmp_path.chmod(0o755)


def test_a_group_may_write_only_if_it_is_the_users_own_group_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path / "file", mode=0o664)
    monkeypatch.setattr(trusted_files, "_is_group_of_one", lambda uid, gid: (uid, gid) == (os.getuid(), os.getgid()))
    assert read_trusted(tmp_path / "file") == b"planted"
    monkeypatch.setattr(trusted_files, "_is_group_of_one", lambda uid, gid: False)
    assert refused(tmp_path / "file").mode == 0o664


def test_a_group_of_one_has_the_users_name_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    users = {7: ("ada", 70), 8: ("bob", 80), 9: ("eve", 90)}
    groups = {70: ("ada", ["ada"]), 80: ("users", []), 90: ("eve", ["eve", "mallory"])}
    monkeypatch.setattr("pwd.getpwuid", lambda uid: _Row(pw_name=users[uid][0], pw_gid=users[uid][1]))
    monkeypatch.setattr("grp.getgrgid", lambda gid: _Row(gr_name=groups[gid][0], gr_mem=groups[gid][1]))
    assert trusted_files._is_group_of_one(7, 70)
    assert not trusted_files._is_group_of_one(7, 80), "another group"
    assert not trusted_files._is_group_of_one(8, 80), "a group of many"
    assert not trusted_files._is_group_of_one(9, 90), "somebody was added"
    assert not trusted_files._is_group_of_one(10, 70), "nobody knows that user"


class _Row:
    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)


def test_what_is_no_file_never_holds_up_its_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir(mode=0o700)
    for name in ("pipe", "folder"):
        for how in (open_trusted, open_own):
            with pytest.raises(OSError, match="not a regular file"):
                how(tmp_path / name)
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError) as caught:
        open_trusted(tmp_path / "round")
    assert caught.value.errno == errno.ELOOP


# --- a second user ----------------------------------------------------------------------------------------------------


@needs_root
def test_what_another_user_planted_in_a_shared_folder_is_refused(everybodys: Path) -> None:  # S13
    """Each way to plant something, against a victim who is neither the planter nor root."""
    as_user(ADA, lambda: plant(everybodys / "secrets", "of ada", 0o600))

    def by_mallory() -> None:
        plant(everybodys / "file")
        (everybodys / "link").symlink_to(everybodys / "secrets")
        (everybodys / "folder").mkdir()
        plant(everybodys / "folder" / "file")
        os.mkfifo(everybodys / "pipe")

    as_user(MALLORY, by_mallory)
    for name in ("file", "link", "folder/file", "pipe"):
        error = as_user(ADA, lambda name=name: refused(everybodys / name))
        assert error.owner == MALLORY, name
        assert f"belongs to user {MALLORY}" in str(error) and f"user {ADA}" in str(error)
    plant(everybodys / "of-root")
    assert as_user(ADA, lambda: read_trusted(everybodys / "of-root")) == b"planted"
    for name in ("file", "folder/file"):
        assert as_user(ADA, lambda name=name: refused(everybodys / name, open_own)).owner == MALLORY
    with pytest.raises(OSError, match="symbolic link"):
        as_user(ADA, lambda: open_own(everybodys / "link"))


@needs_root
def test_nobody_is_a_user_like_others_but_stands_for_root_where_root_has_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = int(Path("/proc/sys/kernel/overflowuid").read_text())
    plant(tmp_path / "file")
    os.chown(tmp_path, nobody, nobody)
    assert refused(tmp_path / "file").owner == nobody
    assert refused(tmp_path / "file", open_own).owner == nobody
    (tmp_path / "uid_map").write_text("         0     100000      65536\n")
    monkeypatch.setattr(trusted_files, "_UID_MAP", tmp_path / "uid_map")
    assert read_trusted(tmp_path / "file") == b"planted"
    os.chown(tmp_path / "file", nobody, nobody)
    assert refused(tmp_path / "file").owner == nobody, "it may be a stranger's: what has no number has one owner"
    os.chown(tmp_path, 0, 0)


# --- places to write to -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_folders_are_ours_alone_under_any_umask(tmp_path: Path, umask: int) -> None:  # S12
    """The folders above the one that is asked for, too: in one that others may write to, they could replace it."""
    folder = tmp_path / "a" / "b" / "c"
    before = os.umask(umask)
    try:
        make_private_folder(folder)
        make_private_folder(folder)
    finally:
        os.umask(before)
    for made in (folder, folder.parent, folder.parent.parent):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700


@needs_root
def test_a_folder_that_another_user_made_first_is_refused(everybodys: Path) -> None:  # S13
    as_user(MALLORY, lambda: (everybodys / "taken").mkdir(mode=0o777))
    error = as_user(ADA, lambda: refused(everybodys / "taken", make_private_folder))
    assert error.owner == MALLORY
    as_user(ADA, lambda: make_private_folder(everybodys / "free"), umask=0)
    assert stat.S_IMODE((everybodys / "free").stat().st_mode) == 0o700


@pytest.mark.parametrize("umask", [0o022, 0o777])
def test_a_new_folder_that_another_user_replaces_by_a_link_gives_nobody_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    """The permissions of what the link leads to were changed: with those of the link, everybody had all of them."""
    private, made = tmp_path / "private", os.mkdir
    private.mkdir(mode=0o500)

    def replaced(path: Path, mode: int) -> None:
        made(path, mode)
        Path(path).rename(tmp_path / "away")
        Path(path).symlink_to(private)

    monkeypatch.setattr(os, "mkdir", replaced)
    before = os.umask(umask)
    try:
        with pytest.raises(FileExistsError, match="replaced it"):
            open_new_folder(tmp_path / "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE(private.stat().st_mode) == 0o500


@pytest.mark.parametrize("way", ["", "ours", "link"])
def test_a_temporary_folder_is_not_made_where_another_user_could_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The code of a submitted run was: whoever could rename its folder chose what the launcher ran."""
    shared = tmp_path / "shared"
    (shared / "ours").mkdir(parents=True)
    (shared / "link").symlink_to("ours")
    shared.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(shared / way))
    made = make_temporary_folder("rw-test-")
    made.rmdir()
    assert made.parent == Path("/tmp")
    refused(shared / way, lambda folder: make_temporary_folder("rw-test-", [str(folder)]))
    assert sorted(path.name for path in shared.iterdir()) == ["link", "ours"]
    shared.chmod(0o1777)
    made = make_temporary_folder("rw-test-")
    assert made.parent == shared / way and stat.S_IMODE(made.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o1777, 0o700])
def test_nothing_is_appended_to_another_file_by_a_name_that_somebody_else_gave_it(tmp_path: Path, mode: int) -> None:
    # Anybody may link the files of others where fs.protected_hardlinks is off, as in a plain kernel: the output of a
    # worker went into any file of the user, or of root.
    precious, folder = tmp_path / "precious", tmp_path / "shared"
    precious.write_text("as it was")
    folder.mkdir()
    folder.chmod(mode)
    os.link(precious, folder / "log")
    if mode == 0o700:
        os.close(open_to_append(folder / "log"))  # nobody else can have put it there
        return
    with pytest.raises(FileNotTrusted, match="no second name"):
        open_to_append(folder / "log")
    os.close(open_to_append(folder / "another"))
    assert precious.read_text() == "as it was"


def test_output_is_read_from_no_file_that_another_user_put_there(tmp_path: Path) -> None:
    """Where others may write, a link in the place of a log showed any file of this user to visitors of the page."""
    precious, folder = tmp_path / "precious", tmp_path / "shared"
    precious.write_text("secret")
    folder.mkdir()
    folder.chmod(0o1777)
    (folder / "log").write_text("ours")
    with open(open_output(folder / "log"), "rb") as file:
        assert file.read() == b"ours"
    (folder / "link").symlink_to(precious)
    os.link(precious, folder / "second")
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for name, error in (("link", OSError), ("second", FileNotTrusted), ("pipe", OSError), ("folder", OSError)):
        with pytest.raises(error):
            open_output(folder / name)
    assert len(os.listdir("/proc/self/fd")) == before
    folder.chmod(0o700)
    os.close(open_output(folder / "second"))  # nobody else can have put it there


@needs_root
def test_output_of_another_user_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("forged")
    os.chown(tmp_path / "log", MALLORY, MALLORY)
    with pytest.raises(FileNotTrusted, match=r"belongs to user 54322"):
        open_output(tmp_path / "log")
