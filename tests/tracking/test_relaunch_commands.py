"""The commands by which runs go on, are forked and run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ropewalk.errors import RunUnsuitable, SettingsError
from ropewalk.tracking.checkpoints import CheckpointFolder
from ropewalk.tracking.records import StateIs
from ropewalk.tracking.relaunch_commands import settings_of, to_continue, to_fork, to_rerun
from tests.tracking.store.making import begin, new_store

FACTS = {"argv": ["python", "train it.py"], "cwd": "/work here"}


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with new_store(tmp_path) as made:
        yield made


def test_a_command_says_all_to_a_shell(store: Any) -> None:
    begin(store, "a", StateIs("paused", 2.0), facts=FACTS)
    command = to_continue(store, store.run("a"), is_trusted=False)
    assert (command.argv, command.folder) == (FACTS["argv"], FACTS["cwd"])
    assert command.variables["ROPEWALK_CONTINUE"] == "a" and command.variables["ROPEWALK_STORE"] == store.where
    assert str(command).startswith("cd '/work here' && ") and str(command).endswith("python 'train it.py'")


def test_a_fork_begins_at_a_checkpoint_that_is_there(store: Any) -> None:
    folder = store.folder / "a"
    begin(store, "a", StateIs("done", 2.0), facts=FACTS, folder=str(folder), config={"lr": 0.1})
    with pytest.raises(RunUnsuitable, match="has no checkpoint; it has none"):
        to_fork(store, store.run("a"), {}, None, is_trusted=False)
    CheckpointFolder(folder / "checkpoints").write(40, {})
    with pytest.raises(RunUnsuitable, match="has no checkpoint of step 41; it has 40"):
        to_fork(store, store.run("a"), {}, 41.0, is_trusted=False)
    variables = to_fork(store, store.run("a"), {"lr": 1}, 40.0, is_trusted=False).variables
    assert (variables["ROPEWALK_FORK"], variables["ROPEWALK_SET"]) == ("a", '{"lr": 1}')


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "trial", "parent": "s"}, "the function of the trial is not found"),
        ({"facts": {"is_notebook": True}}, "is of a notebook"),
    ],
)
def test_some_runs_have_no_command(store: Any, changes: dict[str, Any], words: str) -> None:
    begin(store, "a", StateIs("done", 2.0), **changes)
    with pytest.raises(RunUnsuitable, match=words):
        to_rerun(store, store.run("a"), {}, is_trusted=False)


def test_an_unknown_setting_is_refused(store: Any) -> None:
    begin(store, "a", StateIs("done", 2.0), facts=FACTS, config={"lr": 0.1})
    with pytest.raises(SettingsError, match="has no 'rate'; it has lr"):
        to_rerun(store, store.run("a"), {"rate": 1}, is_trusted=False)


def test_settings_are_json_or_text() -> None:
    assert settings_of(["a=1", "b=x=y"]) == {"a": 1, "b": "x=y"}
    with pytest.raises(ValueError, match="'lr' is not of the form NAME=VALUE"):
        settings_of(["lr"])
