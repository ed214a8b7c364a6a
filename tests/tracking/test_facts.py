from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ropewalk.tracking import facts


def git(folder: Path, *arguments: str) -> str:
    names = {f"GIT_{role}_{what}": "x@y" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **names, "GIT_CONFIG_GLOBAL": "/dev/null"}
    done = subprocess.run(["git", "-C", str(folder), *arguments], env=environment, capture_output=True, check=True)
    return done.stdout.decode().strip()


def test_a_working_copy_is_told_with_what_is_not_committed(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "train.py").write_text("print(1)\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    (tmp_path / "train.py").write_text("print(2)\n")
    (tmp_path / "new.py").write_text("")
    found = facts.git_facts(tmp_path)
    assert found["commit"] == git(tmp_path, "rev-parse", "HEAD") and found["branch"] == "main"
    assert "-print(1)\n+print(2)" in found["diff"] and found["is_diff_complete"]
    assert found["untracked"] == ["new.py"]


def test_a_large_diff_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "data.txt").write_text("")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    (tmp_path / "data.txt").write_text("a line\n" * 20_000)
    monkeypatch.setattr(facts, "_MOST_DIFF_BYTES", 1000)
    found = facts.git_facts(tmp_path)
    assert len(found["diff"]) <= 1000 and not found["is_diff_complete"]


def test_a_git_that_hangs_or_is_missing_fails_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\nexec sleep 100\n")
    program.chmod(0o700)
    monkeypatch.setattr(facts, "_GIT_S", 0.05)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert facts.git_facts(tmp_path) == {}
    monkeypatch.setenv("PATH", "/nowhere")
    assert facts.git_facts(tmp_path) == {}


def test_packages_are_found_by_their_folders(tmp_path: Path) -> None:
    for name in ("msgspec-0.22.0.dist-info", "My_Package-1.2+local.dist-info", "old-3.0-py3.11.egg-info", "other"):
        (tmp_path / name).mkdir()
    found = facts.installed_packages([str(tmp_path), "/no/such/folder"])
    assert found == {"my-package": "1.2+local", "msgspec": "0.22.0", "old": "3.0"}


def test_no_environment_variable_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "s3cr3t-value")
    assert "s3cr3t-value" not in repr(facts.collect())


def test_the_command_names_its_interpreter() -> None:
    assert facts.command_line() == [sys.executable, *sys.orig_argv[1:]]


def test_the_file_of_a_function_is_found_where_there_is_one() -> None:
    @functools.wraps(git)
    def wrapped() -> None: ...

    assert facts.file_of(git) == facts.file_of(wrapped) == Path(__file__).absolute()
    made_by_a_cell: dict[str, Any] = {}
    exec("def train(): ...", made_by_a_cell)
    assert facts.file_of(made_by_a_cell["train"]) is facts.file_of(functools.partial(git)) is facts.file_of(len) is None


def test_only_a_small_script_without_a_working_copy_is_copied(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print()")
    assert facts.code_to_copy({"script": str(script), "git": {}}) == script
    assert facts.code_to_copy({"script": str(script), "git": {"commit": "abc"}}) is None
    assert facts.code_to_copy({"script": str(tmp_path / "gone.py"), "git": {}}) is None
    os.truncate(script, (1 << 20) + 1)
    assert (
        facts.code_to_copy({"script": str(script), "git": {}}) is facts.code_to_copy({"script": "", "git": {}}) is None
    )
