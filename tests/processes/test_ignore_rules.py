"""Ignore files: git itself says what each of them means."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.processes.ignore_rules import IgnoreRules

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is the judge here, and is not installed")


def ignored(lines: list[str], path: str) -> bool:
    """Ask our rules, folder by folder from the top, as a walk does."""
    rules = IgnoreRules().and_those_of("\n".join(lines))
    parts = path.split("/")
    above = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
    return any(rules.ignores(folder, is_folder=True) for folder in above) or rules.ignores(path, is_folder=False)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


def git_ignores(repository: Path, lines: list[str], paths: list[str]) -> set[str]:
    (repository / ".gitignore").write_text("\n".join(lines) + "\n", encoding="utf-8")
    asked = "\0".join(paths) + "\0"
    command = ["git", "-c", "core.excludesFile=/dev/null", "check-ignore", "--no-index", "-z", "--stdin"]
    done = subprocess.run(command, cwd=repository, input=asked, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return set(filter(None, done.stdout.split("\0")))


PATHS = [
    "a", "b", "ab", "abc", "a b", "a ", "#a", "!a", "a/b", "b/a", "a/b/c", "c/a/b", "a/c/d/b", "data/train.bin",
    "src/data/x.py", "x.pyc", "deep/x.pyc", "a.b", ".hidden", "d-e", "a]b", "a\\b", "aa/bb/cc/dd", "foo/keep/me",
    "foo/x",
]  # fmt: skip


@needs_git
@pytest.mark.parametrize(
    "lines",
    [
        ["a"], ["/a"], ["a/"], ["a/b"], ["*.pyc"], ["data"], ["/data"], ["**/b"], ["a/**"], ["a/**/b"], ["**"], ["*"],
        ["*", "!a"], ["*", "!*/", "!*.py"], ["foo/*", "!foo/keep"], ["foo/", "!foo/keep/me"], ["# a", "b"], ["\\#a"],
        ["\\!a"], ["!a"], ["a "], ["a\\ "], ["a?c"], ["[ab]"], ["[!a]"], ["[^a]"], ["[a-c]"], ["[]]"], ["a[]]b"],
        ["d[-]e"], ["[a-]"], ["[c-a]"], ["[[:alpha:]]"], ["["], ["a\\"], ["a\\\\b"], ["", " "], ["/"], ["//"], ["a//b"],
        ["a**"], ["**a"], ["/**/b"], ["**/"], ["a/*/b"], ["?"], [".*"], ["a/b/"], ["**/**/b"], ["a/**/**/b"], ["/*"],
        ["a\r"], ["bb/cc"], ["**/bb/cc"], ["**/bb/**"], ["a]b"], ["\\a"], ["[\\a]"], ["***/bb"],
        ["****/c[!a]"], ["a/***"],
    ],
    ids=" ; ".join,
)  # fmt: skip
def test_rules_mean_what_they_mean_to_git(repository: Path, lines: list[str]) -> None:
    assert {path for path in PATHS if ignored(lines, path)} == git_ignores(repository, lines, PATHS)


NAMES = st.text("ab.-", min_size=1, max_size=3).filter(lambda name: name.strip(".") != "")
WALKS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
PIECES = st.sampled_from(["a", "b", "*", "**", "?", "/", ".", "[ab]", "[!a]", "[a-b]", "!", "-", "\\a", "#", " "])
LINES = st.lists(PIECES, min_size=1, max_size=6).map("".join)


@needs_git
@settings(max_examples=150, deadline=None)
@given(lines=st.lists(LINES, min_size=1, max_size=4), paths=st.lists(WALKS, min_size=1, max_size=8, unique=True))
def test_any_rules_mean_what_they_mean_to_git(repository: Path, lines: list[str], paths: list[str]) -> None:
    assert {path for path in paths if ignored(lines, path)} == git_ignores(repository, lines, paths)


def test_rules_of_a_folder_hold_below_it_and_win_over_those_above() -> None:
    rules = IgnoreRules().and_those_of("*.txt\n/top").and_those_of("!keep.txt\n/top\n", "sub")
    assert rules.ignores("x.txt", is_folder=False) and rules.ignores("sub/x.txt", is_folder=False)
    assert rules.ignores("keep.txt", is_folder=False) and not rules.ignores("sub/keep.txt", is_folder=False)
    assert rules.ignores("top", is_folder=True) and rules.ignores("sub/top", is_folder=True)
    assert not rules.ignores("sub/sub/top", is_folder=True) and not rules.ignores("subtop", is_folder=True)
