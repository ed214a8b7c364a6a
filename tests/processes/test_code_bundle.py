"""A project's code travels as one block of bytes, and a host unpacks it without trusting it."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tarfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ropewalk.errors import CodeRefused
from ropewalk.processes import code_bundle
from ropewalk.processes.code_bundle import find_project, make_bundle, remap, remap_paths, unpack
from ropewalk.processes.project_files import Project

LIMIT = 10**6


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_bundle, "_last", None)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    root = tmp_path / "project"
    (root / "pack/deep").mkdir(parents=True)
    (root / "pyproject.toml").write_text("")
    (root / "train.py").write_text("import pack\n")
    (root / "pack/__init__.py").write_text("X = 1\n")
    (root / "pack/deep" / ("long" * 50 + ".py")).write_text("Y = 2\n")
    (root / "tool.sh").write_text("#!/bin/sh\n")
    (root / "tool.sh").chmod(0o755)
    (root / "link").symlink_to("pack/__init__.py")
    (root / ("far" * 60)).symlink_to("pack/deep/" + "long" * 50 + ".py")
    return find_project(root / "train.py", tmp_path)


def contents(folder: Path) -> dict[str, object]:
    """What a folder holds: bytes of files, targets of links, None for folders."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        found[name] = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
    return found


def age(folder: Path) -> None:
    """Wait out the time in which a change might leave no trace; the test moves it instead."""
    for path in folder.rglob("*"):
        os.utime(path, ns=(1, 1), follow_symlinks=False)


# --- packing ----------------------------------------------------------------------------------------------------------


def test_what_was_packed_is_unpacked(project: Project, tmp_path: Path) -> None:
    bundle = make_bundle(project, LIMIT)
    folder = unpack(bundle.data, tmp_path / "host")
    assert contents(folder) == contents(project.root)
    assert folder == tmp_path / "host" / bundle.id and bundle.id == hashlib.sha256(bundle.data).hexdigest()
    assert bundle.root == str(project.root) and bundle.left_out == ()
    files = [path for path in project.root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert bundle.size_bytes == sum(path.stat().st_size for path in files)


def test_equal_code_has_an_equal_id_whatever_its_times_modes_and_place(project: Project, tmp_path: Path) -> None:
    first = make_bundle(project, LIMIT)
    age(project.root)
    (project.root / "train.py").chmod(0o600)
    again = make_bundle(project, LIMIT)
    assert again.id == first.id
    elsewhere = project.root.rename(tmp_path / "elsewhere")
    assert make_bundle(Project(elsewhere), LIMIT).id == first.id
    (elsewhere / "train.py").write_text("import pack, sys\n")
    assert make_bundle(Project(elsewhere), LIMIT).id != first.id


def test_an_archive_is_one_that_others_can_read_and_says_nothing_of_its_maker(project: Project, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(zlib.decompress(make_bundle(project, LIMIT).data))
    with tarfile.open(tmp_path / "x.tar") as archive:
        members = archive.getmembers()
    assert {member.name for member in members} == set(contents(project.root))
    assert {(member.uid, member.gid, member.uname, member.mtime) for member in members} == {(0, 0, "", 0)}


def test_an_unchanged_project_is_not_read_again(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = time.time_ns() + 10**10  # ten seconds later nothing can change without a new time stamp
    monkeypatch.setattr(code_bundle.time, "time_ns", lambda: clock)
    first = make_bundle(project, LIMIT)
    assert make_bundle(project, LIMIT) is first
    (project.root / "new.py").write_text("")
    second = make_bundle(project, LIMIT)
    assert second.id != first.id
    (project.root / "new.py").write_text("Z = 3\n")
    assert make_bundle(project, LIMIT).id not in (first.id, second.id)


def test_what_changed_just_now_is_read_again_as_its_time_may_not_tell(project: Project) -> None:
    first = make_bundle(project, LIMIT)
    assert make_bundle(project, LIMIT) is not first


def test_too_much_code_is_refused_with_the_largest_files_and_what_to_do(project: Project) -> None:
    (project.root / "data").mkdir()
    with open(project.root / "data/train.bin", "wb") as file:
        file.truncate(3 * 10**9)  # nothing of it is read
    (project.root / "model.pt").write_bytes(bytes(2 * LIMIT))
    with pytest.raises(CodeRefused) as caught:
        make_bundle(project, LIMIT)
    message = str(caught.value)
    assert "has 3.0 GB in 9 files, more than the setting code_limit of 1.0 MB" in message
    assert "The largest: data/train.bin 3.0 GB, model.pt 2.0 MB. Name" in message
    assert f"{project.root}/.ropewalkignore" in message and 'code = "shared"' in message
    (project.root / ".ropewalkignore").write_text("/data/\n*.pt\n")
    make_bundle(project, LIMIT)


def test_a_file_that_vanishes_while_it_is_packed_is_left_out(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_files = code_bundle.list_files

    def list_and_remove(project: Project) -> object:
        listing = list_files(project)
        (project.root / "train.py").unlink()
        return listing

    monkeypatch.setattr(code_bundle, "list_files", list_and_remove)
    folder = unpack(make_bundle(project, LIMIT).data, tmp_path / "host")
    assert "train.py" not in contents(folder) and "pack/__init__.py" in contents(folder)


def test_names_that_are_no_text_travel(project: Project, tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\xfe.py")
    (project.root / name).write_text("odd")
    assert (unpack(make_bundle(project, LIMIT).data, tmp_path / "host") / name).read_text() == "odd"


# --- unpacking --------------------------------------------------------------------------------------------------------


def test_a_host_unpacks_a_bundle_once_and_for_its_user_alone(project: Project, tmp_path: Path) -> None:
    data = make_bundle(project, LIMIT).data
    before = os.umask(0)
    try:
        folder = unpack(data, tmp_path / "host")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*") if not path.is_symlink()}
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE((tmp_path / "host").stat().st_mode) == 0o700
    assert (modes["train.py"], modes["tool.sh"], modes["pack"]) == (0o600, 0o700, 0o700)
    inode = (folder / "train.py").stat().st_ino
    assert unpack(data, tmp_path / "host") == folder and (folder / "train.py").stat().st_ino == inode


def test_many_who_unpack_at_once_find_one_whole_folder(project: Project, tmp_path: Path) -> None:
    data = make_bundle(project, LIMIT).data
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(unpack(data, tmp_path / "host"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 8 and len(set(folders)) == 1
    assert contents(folders[0]) == contents(project.root)
    assert os.listdir(tmp_path / "host") == [folders[0].name]


@pytest.mark.parametrize("kind", ["link", "shared"])
def test_a_folder_that_others_can_change_takes_no_code(project: Project, tmp_path: Path, kind: str) -> None:
    (tmp_path / "theirs").mkdir()
    if kind == "link":
        (tmp_path / "host").symlink_to("theirs")
    else:
        (tmp_path / "host").mkdir()
        (tmp_path / "host").chmod(0o777)
    with pytest.raises(CodeRefused, match="that no other can change"):
        unpack(make_bundle(project, LIMIT).data, tmp_path / "host")
    assert list((tmp_path / "theirs").iterdir()) == []


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, target: str = "") -> bytes:
    """A member of an archive, as somebody with bad intentions may write it."""
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(content), kind, target
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


def header(name: str, kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


FOLDER = member("d", kind=tarfile.DIRTYPE)
EVIL: dict[str, tuple[Callable[[], bytes], str]] = {
    "a parent": (lambda: member("../evil", b"x"), "outside"),
    "a parent further down": (lambda: FOLDER + member("d/../../evil", b"x"), "outside"),
    "an absolute name": (lambda: member("/tmp/evil", b"x"), "outside"),
    "an empty name": (lambda: member("", b"x"), "outside"),
    "the folder itself": (lambda: member(".", kind=tarfile.DIRTYPE), "outside"),
    "a link out": (lambda: member("l", kind=tarfile.SYMTYPE, target="../evil"), "outside"),
    "an absolute link": (lambda: member("l", kind=tarfile.SYMTYPE, target="/etc/passwd"), "outside"),
    "a link up behind a name": (lambda: FOLDER + member("l", kind=tarfile.SYMTYPE, target="d/../../x"), "outside"),
    "a link that is deep by links": (
        lambda: member("p", kind=tarfile.SYMTYPE, target=".") + member("p/p/l", kind=tarfile.SYMTYPE, target="../.."),
        "does not come before",
    ),
    "a file through a link": (
        lambda: FOLDER + member("l", kind=tarfile.SYMTYPE, target="d") + member("l/x", b"x"),
        "does not come before",
    ),
    "a hard link": (lambda: member("h", kind=tarfile.LNKTYPE, target="/etc/passwd"), "neither a file"),
    "a device": (lambda: member("dev", kind=tarfile.CHRTYPE), "neither a file"),
    "a pipe": (lambda: member("pipe", kind=tarfile.FIFOTYPE), "neither a file"),
    "extended headers": (lambda: member("x", b"20 path=../../evil\n", kind=tarfile.XHDTYPE), "neither a file"),
    "a name twice": (lambda: member("a", b"x") + member("a", b"y"), "there twice"),
    "a folder twice": (lambda: FOLDER + FOLDER, "there twice"),
    "a folder over a file": (lambda: member("d", b"x") + FOLDER, "there twice"),
    "a file over a folder": (lambda: FOLDER + member("d", b"x"), "there twice"),
    "a link twice": (lambda: 2 * member("l", kind=tarfile.SYMTYPE, target="x"), "there twice"),
    "a link over a file": (lambda: member("l", b"x") + member("l", kind=tarfile.SYMTYPE, target="x"), "there twice"),
    "a file over a link": (lambda: member("l", kind=tarfile.SYMTYPE, target="x") + member("l", b"x"), "there twice"),
    "a long name": (lambda: member("n" * 256, b"x"), "no disk takes"),
    "a long path": (lambda: member("n/" * 2000 + "n", b"x"), "no disk takes"),
    "a huge name": (lambda: header("x", tarfile.GNUTYPE_LONGNAME, 10 << 30), "a name of 10737418240 bytes"),
    "a size that the data has not": (lambda: header("x", tarfile.REGTYPE, 1000), "ends too early"),
    "noise": (lambda: b"\x01" * 512, "damaged"),
}  # fmt: skip


@pytest.mark.parametrize("evil", EVIL)
def test_a_bundle_that_reaches_out_or_is_damaged_leaves_nothing(tmp_path: Path, evil: str) -> None:
    make, words = EVIL[evil]
    host = tmp_path / "deep/er/host"
    with pytest.raises(CodeRefused, match=words):
        unpack(zlib.compress(make() + (b"" if words == "ends too early" else bytes(1024))), host)
    assert list(host.iterdir()) == [] and list(tmp_path.glob("**/evil")) == []


@pytest.mark.parametrize("data", [b"", b"not a bundle", zlib.compress(bytes(1024))[:-8]])
def test_bytes_that_are_no_bundle_are_refused_or_empty(tmp_path: Path, data: bytes) -> None:
    if data.startswith(b"x"):
        assert contents(unpack(data, tmp_path / "host")) == {}  # cut off behind its end: nothing is missing
        return
    with pytest.raises(CodeRefused, match="damaged"):
        unpack(data, tmp_path / "host")


def zeros(size_bytes: int) -> Iterator[bytes]:
    """A compressed archive with a file of `size_bytes` zeros, made without ever holding them."""
    squeeze = zlib.compressobj(9)
    yield squeeze.compress(header("zeros", tarfile.REGTYPE, size_bytes))
    piece = bytes(1 << 24)
    for _ in range(size_bytes >> 24):
        yield squeeze.compress(piece)
    yield squeeze.compress(bytes(1024)) + squeeze.flush()


def test_ten_gibibytes_of_zeros_are_refused_in_little_memory_and_disk(tmp_path: Path) -> None:
    data = b"".join(zeros(1 << 28))  # as many as are read before the refusal, and more
    forged = zlib.compressobj(9)
    huge = (
        forged.compress(header("zeros", tarfile.REGTYPE, 10 << 30)) + forged.compress(bytes(1 << 26)) + forged.flush()
    )
    before = psutil.Process().memory_info().rss
    for bomb in (data, huge):
        with pytest.raises(CodeRefused, match=r"unpacks to more than 33\.6 MB"):
            unpack(bomb, tmp_path / "host", limit_bytes=1 << 25)
    assert psutil.Process().memory_info().rss - before < 64 << 20
    assert list((tmp_path / "host").iterdir()) == []


def test_a_million_empty_files_count_as_well(tmp_path: Path) -> None:
    many = b"".join(member(f"f{number}") for number in range(300))
    with pytest.raises(CodeRefused, match="unpacks to more than"):
        unpack(zlib.compress(many + bytes(1024)), tmp_path / "host", limit_bytes=100_000)


def test_no_more_files_are_unpacked_than_code_ever_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_bundle, "MAX_FILES", 300)
    for kind, target in ((tarfile.REGTYPE, ""), (tarfile.DIRTYPE, ""), (tarfile.SYMTYPE, "x")):
        many = [member(f"f{number}", kind=kind, target=target) for number in range(301)]
        with pytest.raises(CodeRefused, match="more than 300 files and folders"):
            unpack(zlib.compress(b"".join(many) + bytes(1024)), tmp_path / "host")
        assert list((tmp_path / "host").iterdir()) == []
    unpack(zlib.compress(b"".join(many[:300]) + bytes(1024)), tmp_path / "host")


def test_the_folders_above_a_bundle_are_closed_to_others_too(project: Project, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        unpack(make_bundle(project, LIMIT).data, tmp_path / "deep/er/host")
    finally:
        os.umask(before)
    for folder in ("deep", "deep/er", "deep/er/host"):
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o700


# --- paths on the other side ------------------------------------------------------------------------------------------


def test_paths_of_the_project_are_found_on_the_other_side() -> None:
    assert remap("/home/ada/p", "/home/ada/p", "/run/x") == "/run/x"
    assert remap("/home/ada/p/src/a.py", "/home/ada/p", "/run/x") == "/run/x/src/a.py"
    assert remap("/home/ada/pq/a.py", "/home/ada/p", "/run/x") == "/home/ada/pq/a.py"
    assert remap("/a", "/", "/run/x") == "/run/x/a"


def test_the_import_path_has_the_code_of_the_project_and_the_modules_of_this_interpreter(tmp_path: Path) -> None:
    (tmp_path / "new/src").mkdir(parents=True)
    (tmp_path / "shared").mkdir()
    launcher = [
        "/home/ada/p", "/home/ada/p/src", "/home/ada/p/missing", str(tmp_path / "shared"), "/home/ada/elsewhere",
        "/home/ada/.pyenv/versions/3.11.9/lib/python311.zip", "/home/ada/.pyenv/versions/3.11.9/lib/python3.11",
        "/home/ada/.pyenv/versions/3.11.9/lib/python3.11/lib-dynload", "/home/ada/p/.venv/lib/python3.11/site-packages",
    ]  # fmt: skip
    own = ["", "/usr/lib/python3.11", "/usr/lib/python3/dist-packages"]
    here = remap_paths(launcher, "/home/ada/p", str(tmp_path / "new"), own)
    assert here == [str(tmp_path / "new"), str(tmp_path / "new/src"), str(tmp_path / "shared"), *own]


def test_what_came_behind_the_installed_packages_stays_behind_them(tmp_path: Path) -> None:
    (tmp_path / "late").mkdir()
    here = remap_paths(
        [f"/x/lib/python{sys.version_info.major}.{sys.version_info.minor}", str(tmp_path / "late")],
        "/p",
        "/n",
        ["/own"],
    )
    assert here == ["/own", str(tmp_path / "late")]


def test_this_interpreters_own_path_is_recognised() -> None:
    standard = [path for path in sys.path if path.endswith(("site-packages", "lib-dynload", ".zip"))]
    assert standard and remap_paths(standard, "/p", "/n", ["/own"]) == ["/own"]
