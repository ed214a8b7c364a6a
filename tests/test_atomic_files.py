"""Files and folders are whole or not there: killed writers, full disks, two writers, planted links, any umask."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ropewalk import atomic_files
from ropewalk.atomic_files import (
    StagedFile,
    StagedFolder,
    open_new_file,
    remove_folder,
    remove_left,
    replace_file,
    write_locked_file,
    write_new_file,
)
from tests.other_users import ADA, MALLORY, as_user, needs_root
from tests.patience import PATIENCE_S


def held(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def in_child(code: str, folder: Path) -> subprocess.Popen[str]:
    start = (
        "import os, resource, signal, sys, time\n"
        "from pathlib import Path\n"
        "from ropewalk.atomic_files import *\n"
        "folder = Path(sys.argv[1])\n"
    )
    return subprocess.Popen([sys.executable, "-c", start + code, str(folder)], stdout=subprocess.PIPE, text=True)


def killed_once_ready(code: str, folder: Path) -> None:
    """Run code that prints a line and then waits, and kill it there."""
    with in_child(code + "print('ready', flush=True)\ntime.sleep(600)\n", folder) as child:
        assert child.stdout and child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGKILL)


# --- killed writers ---------------------------------------------------------------------------------------------------

STAGE = "staged = StagedFile(folder / 'file'); staged.file.write(b'half of'); staged.file.flush()\n"


def test_what_a_killed_writer_staged_is_removed_by_the_next_one_of_that_name(tmp_path: Path) -> None:
    replace_file(tmp_path / "file", [b"old"])
    killed_once_ready(STAGE, tmp_path)
    (staged,) = tmp_path.glob(".file.*")
    assert staged.read_bytes() == b"half of"
    assert (tmp_path / "file").read_bytes() == b"old"
    replace_file(tmp_path / "other", [b"of another name"])
    assert staged.exists()
    replace_file(tmp_path / "file", [b"new"])
    assert held(tmp_path) == {"file": b"new", "other": b"of another name"}


def test_a_writer_that_goes_on_loses_nothing_to_the_next_one(tmp_path: Path) -> None:
    with StagedFile(tmp_path / "file") as first:
        first.file.write(b"first")
        with StagedFile(tmp_path / "file") as second:
            second.file.write(b"second")
            second.commit()
        assert (tmp_path / "file").read_bytes() == b"second"
        first.commit()
    assert held(tmp_path) == {"file": b"first"}


def test_a_child_that_writes_keeps_the_file_of_its_dead_parent(tmp_path: Path) -> None:
    """The state of a service is written by a forked child."""
    fork = "import os\nif not os.fork():\n    print(os.getpid(), flush=True); time.sleep(600)\n"
    with in_child(STAGE + fork + "os.wait()\n", tmp_path) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    (staged,) = tmp_path.glob(".file.*")
    replace_file(tmp_path / "file", [b"new"])
    assert staged.exists()
    os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while staged.exists() and time.monotonic() < deadline:  # the kernel takes a moment to release its lock
        replace_file(tmp_path / "file", [b"newer"])
    assert held(tmp_path) == {"file": b"newer"}


@pytest.mark.parametrize("num_steps", range(1, 7))
def test_a_writer_killed_before_any_step_leaves_the_old_file_or_the_new_one(tmp_path: Path, num_steps: int) -> None:
    """Steps are announced by Python's audit events; the writer is killed at the n-th."""
    replace_file(tmp_path / "file", [b"old"])
    child = in_child(
        f"left = [{num_steps}]\n"
        f"def kill(event, arguments):\n"
        f"    if event in ('open', 'os.rename', 'os.remove', 'os.scandir', 'fcntl.flock'):\n"
        f"        left[0] -= 1\n"
        f"        if not left[0]: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"boot_id()\n"
        f"import ropewalk.atomic_files as module; module.boot_id = lambda: '0' * 8\n"
        f"sys.addaudithook(kill)\n"
        f"replace_file(folder / 'file', [b'new'])\n",
        tmp_path,
    )
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert (tmp_path / "file").read_bytes() == (b"new" if num_steps == 6 else b"old")


def test_what_another_kernel_has_left_goes_after_a_day(tmp_path: Path) -> None:
    fresh, old, forged = (tmp_path / f".file.{boot}-00000000" for boot in ("0" * 8, "1" * 8, "2" * 9))
    for path in (fresh, old, forged):
        path.touch()
        os.utime(path, (1e9, 1e9))
    os.utime(fresh)
    replace_file(tmp_path / "file", [b"new"])
    assert held(tmp_path).keys() == {fresh.name, forged.name, "file"}


def test_a_name_as_long_as_there_can_be_is_written_and_tidied_up(tmp_path: Path) -> None:
    name = "\N{GREEK SMALL LETTER PI}" * 127 + "x"
    (tmp_path / "other").mkdir()
    with StagedFile(tmp_path / name) as staged:
        staged.file.write(b"long")
        (left,) = tmp_path.glob(".*")
        staged.commit()
    assert held(tmp_path / "other") == {} and (tmp_path / name).read_bytes() == b"long"
    left.touch()
    replace_file(tmp_path / name, [b"longer"])
    assert not left.exists()


# --- what cannot be written -------------------------------------------------------------------------------------------


def test_what_cannot_be_written_whole_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    replace_file(tmp_path / "file", [b"old"])

    def parts() -> Iterator[bytes]:
        yield b"half of"
        raise OSError(errno.ENOSPC, "no room")

    with pytest.raises(OSError, match="no room"):
        replace_file(tmp_path / "file", parts())
    with pytest.raises(OSError, match="no room"):
        write_new_file(tmp_path / "new", parts())
    assert held(tmp_path) == {"file": b"old"}


def test_a_full_disk_leaves_the_old_file_and_room_for_a_smaller_one(tmp_path: Path) -> None:
    child = in_child(
        "replace_file(folder / 'file', [b'old'])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))\n"
        "for write, name in ((replace_file, 'file'), (write_new_file, 'new')):\n"
        "    try: write(folder / name, [bytes(700_000), bytes(700_000)])\n"
        "    except OSError as error: print(error.errno)\n"
        "print(sorted(os.listdir(folder)), (folder / 'file').read_bytes())\n"
        "replace_file(folder / 'file', [b'small'])\n",
        tmp_path,
    )
    output, _ = child.communicate()
    assert child.returncode == 0
    assert output == f"{errno.EFBIG}\n{errno.EFBIG}\n['file'] b'old'\n"
    assert held(tmp_path) == {"file": b"small"}


@pytest.mark.parametrize("write", [replace_file, write_new_file, lambda path, parts: write_locked_file(path, *parts)])
def test_an_error_of_a_full_disk_names_the_file_and_the_bytes(small_disk: Path, write: Any) -> None:
    # The kernel says neither: a report, or the last checkpoint of an experiment, said "No space left on device".
    file = small_disk / "file"
    with pytest.raises(OSError) as caught:
        write(file, [bytes(2 << 20)])
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    assert caught.value.errno == errno.ENOSPC and held(small_disk) == {}
    assert str(caught.value) == (
        f"[Errno 28] No space left on device (the {free:,} bytes that are free there are too few): {str(file)!r}"
    )


def test_an_error_of_a_file_that_is_too_large_names_the_limit(tmp_path: Path) -> None:
    child = in_child(
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))\n"
        "try: replace_file(folder / 'file', [bytes(1_400_000)])\n"
        "except OSError as error: print(error)\n",
        tmp_path,
    )
    output, _ = child.communicate()
    assert output == (
        "[Errno 27] File too large (this process may write files of at most 1,000,000 bytes): "
        f"{str(tmp_path / 'file')!r}\n"
    )


def test_a_file_that_cannot_be_closed_to_others_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, mode: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic_files.os, "fchmod", full)
    for write in (replace_file, write_new_file):
        with pytest.raises(OSError, match="No space left"):
            write(tmp_path / "secret", [b"secret"])
    assert held(tmp_path) == {}


def test_a_file_system_without_locks_is_written_to_and_never_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_once_ready(STAGE, tmp_path)

    def none(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(atomic_files.fcntl, "flock", none)
    replace_file(tmp_path / "file", [b"new"])
    assert (tmp_path / "file").read_bytes() == b"new" and len(held(tmp_path)) == 2
    with pytest.raises(OSError, match="No locks"):
        write_locked_file(tmp_path / "claim", b"mine")
    with StagedFolder(tmp_path / "folder.tmp", tmp_path / "folder") as staged:
        staged.commit()
    assert len(os.listdir(tmp_path)) == 3


# --- several writers --------------------------------------------------------------------------------------------------


def test_of_many_writers_at_once_each_writes_a_whole_file(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for _ in range(100):
                replace_file(tmp_path / "file", [bytes([number]) * 1000] * 10)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    seen: set[bytes] = set()
    while any(thread.is_alive() for thread in threads):
        if (tmp_path / "file").exists():
            seen.add((tmp_path / "file").read_bytes())
    for thread in threads:
        thread.join()
    assert not errors
    assert seen <= {bytes([number]) * 10_000 for number in range(4)}
    assert held(tmp_path).keys() == {"file"}


def test_a_file_that_another_writer_takes_for_left_before_it_is_locked_is_staged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, taken = open_new_file, list[Path]()

    def open_and_lose(path: Path) -> object:
        file = opened(path)
        if not taken:
            taken.append(path)
            remove_left(path)
            assert not path.exists()
        return file

    monkeypatch.setattr(atomic_files, "open_new_file", open_and_lose)
    replace_file(tmp_path / "file", [b"whole"])
    assert taken and held(tmp_path) == {"file": b"whole"}


def test_a_locked_file_is_locked_until_it_is_closed_or_its_writer_has_died(tmp_path: Path) -> None:
    mine = write_locked_file(tmp_path / "mine", b"mine")
    remove_left(tmp_path / "mine")
    assert held(tmp_path) == {"mine": b"mine"}
    mine.close()
    mine.close()
    remove_left(tmp_path / "mine")
    killed_once_ready("file = write_locked_file(folder / 'theirs', b'theirs')\n", tmp_path)
    assert held(tmp_path) == {"theirs": b"theirs"}
    remove_left(tmp_path / "theirs")
    assert held(tmp_path) == {}


def test_the_file_before_gets_the_name_that_is_asked_for(tmp_path: Path) -> None:
    for content in (b"1", b"2", b"3"):
        with StagedFile(tmp_path / "file") as staged:
            staged.file.write(content)
            staged.commit(previous=tmp_path / "before")
    assert held(tmp_path) == {"file": b"3", "before": b"2"}


# --- folders ----------------------------------------------------------------------------------------------------------


def test_a_folder_is_there_when_it_is_whole_and_else_not(tmp_path: Path) -> None:
    with StagedFolder(tmp_path / "a.tmp", tmp_path / "a") as staged:
        write_new_file(staged.staged / "file", [b"x"])
        with pytest.raises(FileExistsError):
            StagedFolder(tmp_path / "a.tmp", tmp_path / "a")
        remove_left(tmp_path / "a.tmp")
        staged.commit()
    assert held(tmp_path / "a") == {"file": b"x"}
    with StagedFolder(tmp_path / "a.tmp", tmp_path / "a") as staged, pytest.raises(OSError, match="not empty"):
        staged.commit()
    assert os.listdir(tmp_path) == ["a"]
    remove_folder(tmp_path / "a", tmp_path / "a.tmp")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    killed_once_ready("s = StagedFolder(folder / 'a.tmp', folder / 'a'); (s.staged / 'file').touch()\n", tmp_path)
    assert os.listdir(tmp_path) == ["a.tmp"]
    remove_left(tmp_path / "a.tmp")
    remove_left(tmp_path / "a.tmp")
    assert os.listdir(tmp_path) == []


def test_an_abandoned_folder_that_was_moved_away_is_emptied_and_what_is_in_its_place_stays(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    with StagedFolder(tmp_path / "a.tmp", tmp_path / "a") as staged:
        (staged.staged / "part").touch()
        staged.staged.rename(tmp_path / "away")
        (tmp_path / "precious").rename(staged.staged)
    assert (tmp_path / "a.tmp" / "file").exists() and os.listdir(tmp_path / "away") == []


def test_a_left_folder_with_what_its_writer_never_makes_is_left_as_it_is(tmp_path: Path) -> None:
    for file in ("part", "precious"):
        (tmp_path / "a.tmp").mkdir(exist_ok=True)
        (tmp_path / "a.tmp" / file).touch()
        remove_left(tmp_path / "a.tmp", lambda name: name == "part")
    assert os.listdir(tmp_path / "a.tmp") == ["precious"]


def test_a_folder_without_its_mark_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "precious").touch()
    with pytest.raises(FileNotFoundError):
        remove_folder(tmp_path / "a", tmp_path / "a.tmp", "manifest")
    assert os.listdir(tmp_path / "a") == ["precious"]


# --- strangers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_files_are_ours_alone_under_any_umask_from_the_first_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:  # S12
    """The final mode may be set by a second call; nobody else may slip in between the two."""
    modes: list[int] = []
    fchmod = os.fchmod

    def watch(fd: int, mode: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(fd).st_mode))
        fchmod(fd, mode)

    monkeypatch.setattr(atomic_files.os, "fchmod", watch)
    before = os.umask(umask)
    try:
        assert replace_file(tmp_path / "file", [b"ab", bytearray(b"c"), memoryview(b"d")]) == 4
        assert write_new_file(tmp_path / "new", [b"secret"]) == 6
        write_new_file(tmp_path / "read", [], mode=0o644)
        with StagedFolder(tmp_path / "folder.tmp", tmp_path / "folder") as staged:
            staged.commit()
    finally:
        os.umask(before)
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert found == {"file": 0o600, "new": 0o600, "read": 0o600 | 0o044 & ~umask, "folder": 0o700}
    assert (tmp_path / "file").read_bytes() == b"abcd"
    assert all(mode & 0o077 == 0 for mode in modes[:2])


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path: Path) -> None:  # S13
    (tmp_path / "precious").write_text("planted")
    (tmp_path / "file").symlink_to("precious")
    replace_file(tmp_path / "file", [b"new"])
    assert (tmp_path / "precious").read_text() == "planted"
    assert not (tmp_path / "file").is_symlink() and (tmp_path / "file").read_text() == "new"
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("dangling", "precious", "file"):
        with pytest.raises(FileExistsError):
            open_new_file(tmp_path / name)
        with pytest.raises(FileExistsError):
            write_new_file(tmp_path / name, [b"secret"])
        with pytest.raises(FileExistsError):
            StagedFolder(tmp_path / name, tmp_path / "folder")
    assert (tmp_path / "precious").read_text() == "planted" and not (tmp_path / "nowhere").exists()


def test_a_link_in_the_place_of_a_staged_file_is_passed_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names cannot be guessed; but if one is, nothing is written through the link, nor removed behind it."""
    boot = atomic_files.boot_id()[:8]
    (tmp_path / "precious").write_text("planted")
    (tmp_path / f".file.{boot}-00000000").symlink_to("precious")
    (tmp_path / f".file.{boot}-01010101").symlink_to("nowhere")
    names = iter([bytes(4), b"\1" * 4, b"\2" * 4])
    monkeypatch.setattr(atomic_files.os, "urandom", lambda count: next(names))
    replace_file(tmp_path / "file", [b"new"])
    assert (tmp_path / "precious").read_text() == "planted" and not (tmp_path / "nowhere").exists()
    assert (tmp_path / "file").read_bytes() == b"new" and not (tmp_path / "file").is_symlink()
    monkeypatch.setattr(atomic_files.os, "urandom", lambda count: bytes(4))
    with pytest.raises(FileExistsError, match="planting"):
        replace_file(tmp_path / "file", [b"newer"])
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_link_that_looks_like_a_left_folder_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (tmp_path / "a.tmp").symlink_to("precious")
    remove_left(tmp_path / "a.tmp")
    assert (tmp_path / "precious" / "file").exists() and (tmp_path / "a.tmp").is_symlink()


@needs_root
def test_nothing_is_written_through_what_another_user_plants(everybodys: Path) -> None:  # S13
    """Nor does it hold up or stop the writer, and nothing of the other user is removed."""
    boot = atomic_files.boot_id()[:8]
    secret = everybodys / "secret"

    def plant() -> None:
        (everybodys / f".secret.{boot}-00000000").write_text("left by nobody")
        os.mkfifo(everybodys / f".secret.{boot}-00000001")
        (everybodys / f".secret.{boot}-00000002").symlink_to("/etc/passwd")
        (everybodys / f".secret.{boot}-00000003").mkdir()
        (everybodys / f".secret.{'0' * 8}-00000004").touch()
        os.utime(everybodys / f".secret.{'0' * 8}-00000004", (1e9, 1e9))

    as_user(MALLORY, plant)
    assert as_user(ADA, lambda: replace_file(secret, [b"hush"])) == 4
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600 and secret.stat().st_uid == ADA
    assert len(os.listdir(everybodys)) == 6
    with pytest.raises(PermissionError):
        as_user(MALLORY, secret.read_bytes)
    replace_file(secret, [b"root"])  # root could remove them, and does not
    assert len(os.listdir(everybodys)) == 6
    with pytest.raises(PermissionError):
        as_user(MALLORY, lambda: replace_file(secret, [b"forged"]))
    assert secret.read_bytes() == b"root"


@pytest.fixture(params=[True, False], ids=["exchanged", "two renames"])
def can_exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the file system can let two folders have each other's name at once."""
    if not request.param:
        monkeypatch.setattr(atomic_files, "_exchange", lambda one, other: False)
    return request.param


@pytest.mark.usefixtures("can_exchange")
def test_a_folder_takes_the_place_of_another_one_which_is_removed_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old checkpoint of a step was removed first: a kill meanwhile left none."""
    path, old = tmp_path / "step-5", tmp_path / ".step-5.old"
    path.mkdir()
    (path / "content").write_text("old")
    seen: list[str] = []
    remove = atomic_files.remove_open

    def watched(folder: int, old: Path) -> None:
        seen.append((path / "content").read_text())
        remove(folder, old)

    monkeypatch.setattr(atomic_files, "remove_open", watched)
    with StagedFolder(tmp_path / ".step-5.tmp", path) as staged:
        (staged.staged / "content").write_text("new")
        staged.commit_in_place_of(old)
    assert seen == ["new"] and (path / "content").read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_has_its_name_at_every_moment_while_another_one_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two renames a kill left the only checkpoint of a run under a name that nobody looks for."""
    if not hasattr(ctypes.CDLL(None), "renameat2"):
        pytest.skip("this C library cannot exchange two names")
    path = tmp_path / "step-5"
    path.mkdir()
    monkeypatch.setattr(os, "rename", lambda *paths: pytest.fail(f"renamed: {paths}"))
    with StagedFolder(tmp_path / ".step-5.tmp", path) as staged:
        (staged.staged / "content").write_text("new")
        staged.commit_in_place_of(tmp_path / ".step-5.old")
    assert (path / "content").read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_exchange_with_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="step-5"), StagedFolder(tmp_path / ".tmp", tmp_path / "step-5") as one:
        one.commit_in_place_of(tmp_path / ".old")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_take_the_place_of_another_one_leaves_it_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_files, "_exchange", lambda one, other: False)
    path = tmp_path / "step-5"
    path.mkdir()
    (path / "content").write_text("old")
    with StagedFolder(tmp_path / ".step-5.tmp", path) as staged:
        rename = os.rename

        def refusing(source: Path, target: Path) -> None:
            if source == staged.staged:
                raise OSError("no")
            rename(source, target)

        monkeypatch.setattr(os, "rename", refusing)
        with pytest.raises(OSError, match="no"):
            staged.commit_in_place_of(tmp_path / ".step-5.old")
    assert (path / "content").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
