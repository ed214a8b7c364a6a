"""Secrets stay secret, files and folders are ours alone, and who is retired stays out."""

from __future__ import annotations

import hmac
import os
import pickle
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.errors import SettingsError
from ropewalk.transport import credentials
from ropewalk.transport.credentials import (
    MAX_SOCKET_NAME_BYTES,
    AllowList,
    Credentials,
    create_run_folder,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")


@pytest.fixture(params=[0o000, 0o022, 0o777], ids=lambda mask: f"umask {mask:03o}")
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def short_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a short path, as pytest's own are too long for sockets; the environment names no other."""
    path = Path("/tmp") / f"rwt-{os.urandom(3).hex()}"
    path.mkdir(mode=0o700)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(path))
    yield path
    for root, folders, files in os.walk(path, topdown=False):
        for name in [*files, *folders]:
            found = Path(root, name)
            found.unlink() if found.is_symlink() or not found.is_dir() else found.rmdir()
    path.rmdir()


def knows(members: AllowList, process_id: str, secret: str, fingerprint: str = "") -> bool:
    """Whether a process that has this secret can prove that it is a member."""
    proof = hmac.digest(secret.encode(errors="surrogatepass"), b"a text", "sha256")
    proved, other = (members.has_proved(process_id, fingerprint, text, proof) for text in (b"a text", b"another"))
    return proved and not other


def mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def test_credentials_do_not_show_their_secret_when_printed() -> None:
    shown = Credentials.create("run-1", "worker-3")
    assert len(shown.secret) == 64
    for text in (repr(shown), str(shown), f"{shown}", repr([shown]), "%s" % (shown,)):  # noqa: UP031
        assert shown.secret not in text
        assert "run-1" in text and "worker-3" in text
    assert pickle.loads(pickle.dumps(shown)) == shown


def test_every_process_has_its_own_secret() -> None:
    assert len({Credentials.create("run", "worker").secret for _ in range(100)}) == 100


def test_only_the_right_secret_of_an_admitted_process_is_accepted() -> None:
    members = AllowList()
    members.admit("a", "secret of a")
    members.admit("b", "secret of b")
    assert knows(members, "a", "secret of a")
    assert not knows(members, "a", "secret of b")
    assert not knows(members, "a", "")
    assert not knows(members, "a", "sécret of a")
    assert not knows(members, "a", "\ud800")
    assert not knows(members, "c", "secret of a")
    assert not knows(members, "", "")


def test_secrets_are_compared_in_constant_time_also_for_unknown_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def watch(known: bytes, shown: bytes) -> bool:
        compared.append((known, shown))
        return compare(known, shown)

    monkeypatch.setattr(credentials.hmac, "compare_digest", watch)
    members = AllowList()
    secret = Credentials.create("run", "a").secret
    members.admit("a", secret)
    proof = hmac.digest(secret.encode(), b"text", "sha256")
    assert members.has_proved("a", "", b"text", proof)
    assert not members.has_proved("a", "", b"text", b"x" * 32)
    assert not members.has_proved("nobody", "", b"text", b"x" * 32)
    assert [shown for _, shown in compared] == [proof, b"x" * 32, b"x" * 32]
    assert {len(known) for known, _ in compared} == {32}, "a stranger is compared with as much as a member"


def test_a_retired_process_is_refused_by_secret_and_by_fingerprint() -> None:
    members = AllowList()
    members.admit("a", "secret", "aa" * 32)
    members.admit("b", "other", "bb" * 32)
    assert knows(members, "a", "secret")
    assert members.check_fingerprint("aa" * 32) == "a"
    members.retire("a")
    members.retire("a")
    members.retire("never admitted")
    assert not knows(members, "a", "secret")
    assert members.check_fingerprint("aa" * 32) is None
    assert knows(members, "b", "other") and members.check_fingerprint("bb" * 32) == "b"
    assert members.check_fingerprint("") is None


def test_a_second_process_cannot_step_into_the_place_of_the_first() -> None:
    members = AllowList()
    members.admit("a", "secret", "aa" * 32)
    with pytest.raises(ValueError, match="'a' is admitted already"):
        members.admit("a", "mine")
    with pytest.raises(ValueError, match="certificate of process 'a'"):
        members.admit("b", "mine", "aa" * 32)
    assert knows(members, "a", "secret") and not knows(members, "a", "mine") and not knows(members, "b", "mine")
    members.retire("a")
    members.admit("a", "new")
    assert knows(members, "a", "new") and not knows(members, "a", "secret")


def test_many_threads_may_use_the_list_at_once() -> None:
    members = AllowList()
    wrong: list[str] = []

    def come_and_go(name: str) -> None:
        for number in range(300):
            process = f"{name}.{number}"
            members.admit(process, process, process)
            if not knows(members, process, process) or members.check_fingerprint(process) != process:
                wrong.append(process)
            members.retire(process)
            if knows(members, process, process) or members.check_fingerprint(process):
                wrong.append(process)

    threads = [threading.Thread(target=come_and_go, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_run_folder_is_ours_alone_under_any_umask(short_path: Path, umask: int) -> None:
    folder = create_run_folder(short_path)
    assert folder.parent == short_path
    assert folder.name.startswith("ropewalk-")
    assert mode(folder) == 0o700
    assert folder.stat().st_uid == os.geteuid()


def test_a_socket_with_the_longest_name_fits_into_the_longest_run_folder(short_path: Path) -> None:
    longest = short_path / ("x" * (82 - len(str(short_path)) - len("//ropewalk-00000000")))
    longest.mkdir()
    folder = create_run_folder(longest)
    assert len(str(folder)) == 82
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(folder / ("s" * MAX_SOCKET_NAME_BYTES)))
    (folder / ("s" * MAX_SOCKET_NAME_BYTES)).unlink()
    one_more = short_path / (longest.name + "x")
    one_more.mkdir()
    with pytest.raises(SettingsError, match="would have 83 bytes, unix sockets leave room for 82"):
        create_run_folder(one_more)


def test_neither_folder_nor_file_is_open_to_others_for_even_a_moment(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The final mode may be set by a second call; between the two nobody else may slip in, whatever the umask is."""
    modes: list[int] = []

    def watch(target: Path | int, mode: int) -> None:
        modes.append(stat.S_IMODE(os.stat(target).st_mode))

    monkeypatch.setattr(credentials.os, "chmod", watch)
    before = os.umask(0o000)
    try:
        create_run_folder(short_path)
    finally:
        os.umask(before)
    assert modes == [0o700]


def test_each_call_makes_another_run_folder(short_path: Path) -> None:
    assert len({create_run_folder(short_path) for _ in range(20)}) == 20


def test_the_runtime_folder_of_the_user_is_preferred(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = short_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert create_run_folder().parent == runtime


def test_a_runtime_folder_that_others_can_write_is_passed_by(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = short_path / "run"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    for unfit in (0o777, 0o1777, 0o770):
        runtime.chmod(unfit)
        assert create_run_folder().parent == short_path
    for nowhere in ("relative/run", str(short_path / "missing"), ""):
        monkeypatch.setenv("XDG_RUNTIME_DIR", nowhere)
        assert create_run_folder().parent == short_path
    runtime.chmod(0o700)
    (short_path / "link").symlink_to(runtime)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path / "link"))
    assert create_run_folder().parent == short_path


@needs_root
def test_folders_of_other_users_are_passed_by(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = short_path / "run"
    foreign.mkdir(mode=0o700)
    os.chown(foreign, 12345, 12345)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(foreign))
    assert create_run_folder().parent == short_path
    with pytest.raises(SettingsError, match="belongs to user 12345"):
        create_run_folder(foreign)


def test_a_folder_whose_path_is_not_utf8_is_passed_by(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its sockets had addresses that no message could carry: agents on other hosts were waited for without end.
    odd = short_path / os.fsdecode(b"l\xe4uft")
    odd.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(odd))
    assert create_run_folder().parent == short_path
    with pytest.raises(SettingsError, match="its path is not UTF-8"):
        create_run_folder(odd)


def test_a_long_folder_for_temporary_files_is_passed_by(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = short_path / ("long" * 20)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    folder = create_run_folder()
    folder.rmdir()
    assert folder.parent == Path("/tmp")


@pytest.mark.parametrize("planted", ["folder", "link to a folder", "dangling link", "file"])
def test_what_was_planted_under_the_name_is_never_used(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    """The attacker even guesses the random name: the next one is taken, and with no other name there is no folder."""
    trap, elsewhere = short_path / "ropewalk-61616161", short_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    if planted == "folder":
        trap.mkdir(mode=0o777)
    elif planted == "file":
        trap.touch()
    else:
        trap.symlink_to(elsewhere if planted == "link to a folder" else short_path / "nothing")
    before = mode(trap)
    names = iter([b"aaaa", b"aaaa", b"bbbb"])
    monkeypatch.setattr(credentials.os, "urandom", lambda size: next(names))
    assert create_run_folder(short_path) == short_path / "ropewalk-62626262"
    monkeypatch.setattr(credentials.os, "urandom", lambda size: b"aaaa")
    with pytest.raises(SettingsError, match="names were all taken"):
        create_run_folder(short_path)
    assert mode(trap) == before and mode(elsewhere) == 0o755
    assert not (short_path / "nothing").exists()
    assert list(elsewhere.iterdir()) == []


def test_a_parent_that_others_may_change_is_refused(short_path: Path) -> None:
    shared = short_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(SettingsError, match="0777 without the sticky bit"):
        create_run_folder(shared)
    shared.chmod(0o1777)
    assert create_run_folder(shared).parent == shared


def test_a_parent_below_a_folder_that_others_may_change_is_refused(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = short_path / "shared" / "ours"
    ours.mkdir(parents=True)
    ours.parent.chmod(0o777)
    with pytest.raises(SettingsError, match=f"others may replace {ours.parent}, .*0777"):
        create_run_folder(ours)
    monkeypatch.setattr("tempfile.tempdir", str(ours))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    passed = create_run_folder()
    passed.rmdir()
    assert passed.parent == Path("/tmp")
    ours.parent.chmod(0o1777)
    assert create_run_folder(ours).parent == ours


def test_a_parent_that_is_no_folder_is_refused_by_name(short_path: Path) -> None:
    (short_path / "file").touch()
    with pytest.raises(SettingsError, match=f"{short_path}/file: is not a folder"):
        create_run_folder(short_path / "file")
    with pytest.raises(SettingsError, match="No such file"):
        create_run_folder(short_path / "missing")
