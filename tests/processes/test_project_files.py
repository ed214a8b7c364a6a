"""Which folder is the project of a script, and what of it is code."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from ropewalk.errors import CodeRefused
from ropewalk.processes import project_files
from ropewalk.processes.project_files import Project, find_project, list_files
from tests.other_users import MALLORY, needs_root


def tree(root: Path, *files: str) -> Path:
    """Make empty files, and folders for names that end in a slash."""
    for file in files:
        path = root / file
        (path if file.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not file.endswith("/"):
            path.touch()
    return root


def paths(root: Path, *, only_beside: bool = False) -> list[str]:
    return [entry.path for entry in list_files(Project(root, only_beside)).entries]


# --- the project ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("marker", ["pyproject.toml", ".git/", "ropewalk.toml"])
def test_the_project_is_the_nearest_folder_with_a_marker(tmp_path: Path, marker: str) -> None:
    tree(tmp_path, "outer/pyproject.toml", f"outer/inner/{marker}", "outer/inner/src/pack/train.py")
    script = tmp_path / "outer/inner/src/pack/train.py"
    assert find_project(script, tmp_path) == Project(tmp_path / "outer/inner")
    assert find_project(None, tmp_path / "outer") == Project(tmp_path / "outer")


def test_without_a_marker_it_is_the_folder_of_the_script(tmp_path: Path) -> None:
    tree(tmp_path, "a/b/train.py")
    assert find_project(tmp_path / "a/b/train.py", tmp_path) == Project(tmp_path / "a/b")


def test_a_script_is_looked_for_where_its_link_leads(tmp_path: Path) -> None:
    tree(tmp_path, "real/ropewalk.toml", "real/train.py", "bin/")
    (tmp_path / "bin/train").symlink_to("../real/train.py")
    assert find_project(tmp_path / "bin/train", tmp_path) == Project(tmp_path / "real")


def test_a_console_script_has_the_project_of_the_working_folder(tmp_path: Path) -> None:
    tree(tmp_path, "mine/pyproject.toml")
    assert find_project(Path(pytest.__file__), tmp_path / "mine") == Project(tmp_path / "mine")


def test_the_home_folder_is_nobodys_project_even_with_a_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "home/.git/", "home/train.py", "home/data.bin", "home/work/train.py", "home/pack/module.py")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    at_home = find_project(tmp_path / "home/train.py", tmp_path)
    assert at_home == Project(tmp_path / "home", only_beside=True)
    assert [entry.path for entry in list_files(at_home).entries] == ["train.py"]
    assert find_project(tmp_path / "home/work/train.py", tmp_path) == Project(tmp_path / "home/work")


@pytest.mark.parametrize("folder", ["/", "/tmp"])
def test_folders_that_many_share_are_no_projects(folder: str) -> None:
    assert find_project(Path(folder) / "train.py", Path("/")) == Project(Path(folder), only_beside=True)


@needs_root
def test_a_marker_that_a_stranger_put_into_a_folder_above_is_none(tmp_path: Path) -> None:
    """All that lies in the folder would be sent to every host, or be too large to be sent."""
    tree(tmp_path, "shared/.git/", "shared/mine/train.py", "shared/theirs/train.py")
    os.chown(tmp_path / "shared/.git", MALLORY, MALLORY)
    mine, theirs = tmp_path / "shared/mine", tmp_path / "shared/theirs"
    assert find_project(mine / "train.py", tmp_path) == Project(mine)
    os.chown(theirs, MALLORY, MALLORY)  # what runs there is hers to decide
    assert find_project(theirs / "train.py", tmp_path) == Project(tmp_path / "shared")


# --- its files --------------------------------------------------------------------------------------------------------


def test_files_come_in_an_order_that_the_disk_does_not_choose(tmp_path: Path) -> None:
    tree(tmp_path, "b.py", "a/z.py", "a/b/c.py", "a.py", "empty/")
    assert paths(tmp_path) == ["a", "a/b", "a/b/c.py", "a/z.py", "a.py", "b.py", "empty"]


def test_what_is_never_code_stays_behind_without_any_rule(tmp_path: Path) -> None:
    tree(tmp_path, "a.py", "a.pyc", ".git/HEAD", "__pycache__/a.cpython-311.pyc", ".venv/x.py", "p/node_modules/x.js")
    tree(tmp_path, "myenv/pyvenv.cfg", "myenv/lib/x.py")
    assert paths(tmp_path) == ["a.py", "p"]


def test_the_ignore_files_of_git_are_respected(tmp_path: Path) -> None:
    tree(tmp_path, "a.py", "data/x.bin", "run.log", "sub/keep.log", "sub/own.txt")
    (tmp_path / ".gitignore").write_text("/data\n*.log\n")
    (tmp_path / "sub/.gitignore").write_text("!keep.log\nown.txt\n")
    assert paths(tmp_path) == [".gitignore", "a.py", "sub", "sub/.gitignore", "sub/keep.log"]


def test_our_own_ignore_file_replaces_those_of_git(tmp_path: Path) -> None:
    tree(tmp_path, "a.py", "weights.bin", "generated.py")
    (tmp_path / ".gitignore").write_text("generated.py\n")
    (tmp_path / ".ropewalkignore").write_text("*.bin\n")
    assert paths(tmp_path) == [".gitignore", ".ropewalkignore", "a.py", "generated.py"]


def test_links_stay_inside_and_what_cannot_travel_is_told(tmp_path: Path) -> None:
    root = tree(tmp_path / "root", "a/b/c.py", "x.py")
    tree(tmp_path, "outside.py")
    (root / "a/up").symlink_to("../x.py")
    (root / "absolute").symlink_to(root / "a/b")
    (root / "chain").symlink_to("absolute/c.py")
    (root / "broken").symlink_to("a/none.py")
    (root / "whole").symlink_to(".")
    (root / "circle").symlink_to("circle")
    (root / "out").symlink_to("../outside.py")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "sock"))
    os.mkfifo(root / "pipe")
    listing = list_files(Project(root))
    targets = {entry.path: entry.target for entry in listing.entries if entry.target}
    assert targets == {
        "a/up": "../x.py", "absolute": "a/b", "chain": "a/b/c.py", "broken": "a/none.py", "whole": ".",
    }  # fmt: skip
    assert [left.partition(" ")[0] for left in listing.left_out] == ["circle", "out", "pipe", "sock"]
    assert "out (a link to ../outside.py, which is outside)" in listing.left_out


def test_more_files_than_code_ever_has_are_refused_with_the_name_of_the_ignore_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project_files, "MAX_FILES", 3)
    tree(tmp_path, "a.py", "data/x.py", "data/y.py", "b.py")
    with pytest.raises(CodeRefused, match=r"more than 3 files.* in: data 1\. .*\.ropewalkignore"):
        list_files(Project(tmp_path))
    (tmp_path / ".ropewalkignore").write_text("data\n.*\n")
    assert paths(tmp_path) == ["a.py", "b.py"]


def test_folders_nested_deeper_than_any_code_are_refused_by_name(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    try:
        with pytest.raises(CodeRefused, match=r"hundreds deep, below d/d/.*\.ropewalkignore"):
            list_files(Project(tmp_path))
    finally:
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)


def test_a_name_that_is_no_text_is_listed(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/\xff.py", "wb"):
        pass
    assert paths(tmp_path) == ["\udcff.py"]


def test_a_pipe_in_the_place_of_an_ignore_file_is_not_waited_for(tmp_path: Path) -> None:
    tree(tmp_path, "a.py", "deep/b.py")
    os.mkfifo(tmp_path / ".gitignore")
    (tmp_path / "deep/.gitignore").mkdir()
    listing = list_files(Project(tmp_path))
    assert [entry.path for entry in listing.entries] == ["a.py", "deep", "deep/.gitignore", "deep/b.py"]
    assert [each for each in listing.left_out if each.startswith("the rules")] == [
        "the rules in .gitignore (it is not a file)",
        "the rules in deep/.gitignore (it is not a file)",
    ]
