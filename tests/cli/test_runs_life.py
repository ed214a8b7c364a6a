"""The commands of `ropewalk runs` for the life of a run; the process that owns one is a thread of the test, or real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.exceptions import Exit

from ropewalk.cli import runs_life
from ropewalk.cli.runs import runs as commands
from ropewalk.cli.runs_life import parse_settings
from ropewalk.errors import RunUnsuitable
from ropewalk.process_start import start_ticks
from ropewalk.tracking import RunStore, open_store
from ropewalk.tracking.checkpoints import CheckpointFolder
from ropewalk.tracking.facts import this_process
from ropewalk.tracking.journal import RecordJournal
from ropewalk.tracking.records import AttemptBegan, Metrics, OwnerIs, Record, RunCreated, RunRecord, StateIs
from tests.patience import PATIENCE_S

SLEEP = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(100)"]


@pytest.fixture(scope="module")
def _store_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("life") / "runs.db"
    open_store(path).close()  # making the tables takes longer than a test
    return path


@pytest.fixture
def store(_store_path: Path) -> Iterator[RunStore]:
    with open_store(_store_path) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _store_of_the_commands(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_STORE", store.where)
    monkeypatch.setattr(runs_life, "_ANSWER_S", 0.3)


def make(store: RunStore, run: str, state: str = "running", owner: OwnerIs | None = None, **given: Any) -> str:
    facts = {"argv": [sys.executable, "train.py", "--epochs", "3"], "cwd": "/", **given.pop("facts", {})}
    fields: dict[str, Any] = {"kind": "script", "config": {"lr": 0.1}, "folder": str(store.folder / run), **given}
    records: list[Record] = [
        RunCreated(project="p", name=f"name-{run}", time=1.0, facts=facts, **fields),
        owner or this_process(),
        AttemptBegan(1, "h", 1, 1.0),
        StateIs(state, 2.0),
    ]
    store.apply([RunRecord(run, record) for record in records])
    return run


class Owner:
    """Answers the next request of a run, and changes the state of the run."""

    def __init__(self, store: RunStore, run: str, state: str, answer: str = "it pauses soon") -> None:
        self.actions: list[str] = []

        def serve() -> None:
            deadline = time.monotonic() + PATIENCE_S
            while not (found := store.requests([run])) and time.monotonic() < deadline:
                time.sleep(0.005)
            self.actions.append(found[0].action)
            store.answer(found[0].number, True, answer)
            store.apply([RunRecord(run, StateIs(state, 3.0))])

        self._thread = threading.Thread(target=serve)

    def __enter__(self) -> Owner:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.join()


class Executed(Exception):
    """Stands for the process that this one would become."""


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    found: list[tuple[list[str], dict[str, str]]] = []

    def execvpe(file: str, argv: list[str], environment: dict[str, str]) -> None:
        found.append((argv, environment))
        raise Executed

    monkeypatch.setattr(os, "chdir", lambda folder: found.append(([folder], {})))
    monkeypatch.setattr(os, "execvpe", execvpe)
    return found


def runs(*words: str) -> int:
    """Run `ropewalk runs` with these words, in this process, and return its exit code."""
    return commands.main(words, standalone_mode=False) or 0


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("action", "state"), [("pause", "paused"), ("stop", "stopped")])
def test_a_run_is_asked_and_the_end_is_told(
    store: RunStore, capsys: pytest.CaptureFixture[str], action: str, state: str
) -> None:
    run = make(store, f"ask-{action}")
    with Owner(store, run, state) as owner:
        assert runs(action, f"name-{run}") == 0
    assert owner.actions == [action]
    output = capsys.readouterr()
    assert output.out == f"name-{run} ({run}) is {state}\n" and output.err == f"name-{run}: it pauses soon\n"


def test_the_result_is_json_for_programs(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(store, "as-json")
    with Owner(store, run, "paused"):
        assert runs("pause", run, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report.pop("request") > 0
    assert report == {
        "run": run, "name": f"name-{run}", "action": "pause", "state": "paused", "ok": True, "answer": "it pauses soon",
    }  # fmt: skip


def test_an_owner_that_does_not_answer_is_told(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(store, "silent")
    assert runs("pause", run) == 1
    output = capsys.readouterr().err
    assert f"process {os.getpid()} on" in output and "has not answered within 0.3 s; the request stays open" in output
    assert f"ropewalk runs kill {run}" in output


def test_a_run_that_has_not_paused_in_time_is_told(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(store, "slow")
    with Owner(store, run, "running"):
        assert runs("pause", run, "--wait", "0.05") == 1
    assert capsys.readouterr().out == f"name-{run} ({run}) is running\n"


def test_only_what_runs_can_be_paused(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(store, "ended", state="done")
    assert runs("pause", run) == 2
    assert "is done; only a running one can be paused" in capsys.readouterr().err


def test_an_answer_cannot_write_to_the_terminal(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(store, "hostile")
    with Owner(store, run, "paused", answer="\x1b[2J"):
        assert runs("pause", run) == 0
    assert "\x1b" not in "".join(capsys.readouterr())


def test_an_unknown_run_is_an_error_with_the_near_ones(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    make(store, "wanted", state="done")
    assert runs("stop", "name-wantd") == 2
    assert "did you mean name-wanted" in capsys.readouterr().err


# --- kill -------------------------------------------------------------------------------------------------------------


def test_a_process_that_does_not_answer_is_killed(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen(SLEEP, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        here = this_process()
        owner = OwnerIs(here.host, process.pid, start_ticks(process.pid), here.boot)
        run = make(store, "kill", owner=owner)
        assert runs("kill", run) == 0
    assert process.returncode == -signal.SIGKILL
    row, (attempt,) = store.run(run), store.attempts(run)
    assert row.state == "stopped" and row.why == "killed by `ropewalk runs kill`; its process did not answer"
    assert attempt.outcome == "lost"
    assert "is stopped" in capsys.readouterr().out


def test_another_process_with_the_number_of_the_owner_is_left_alone(store: RunStore) -> None:
    with subprocess.Popen(SLEEP, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        here = this_process()
        run = make(store, "reused", owner=OwnerIs(here.host, process.pid, 5, here.boot))
        assert runs("kill", run) in (1, 2)
        assert process.poll() is None
        process.kill()


# --- commands of runs -------------------------------------------------------------------------------------------------


def test_a_paused_run_goes_on_by_its_command_in_its_folder(store: RunStore, executed: list[Any]) -> None:
    run = make(store, "paused", state="paused")
    with pytest.raises(Executed):
        runs("continue", run)
    (folder, _), (argv, environment) = executed
    assert folder == ["/"] and argv == [sys.executable, "train.py", "--epochs", "3"]
    assert environment["ROPEWALK_CONTINUE"] == run and environment["ROPEWALK_STORE"] == store.where
    assert "ROPEWALK_FORK" not in environment


@pytest.mark.parametrize(("state", "words"), [("running", "pause it first"), ("done", "ropewalk runs rerun")])
def test_what_runs_or_is_done_does_not_go_on(
    store: RunStore, executed: list[Any], capsys: pytest.CaptureFixture[str], state: str, words: str
) -> None:
    run = make(store, f"no-{state}", state=state)
    assert runs("continue", run) == 2
    assert words in capsys.readouterr().err and executed == []


def test_a_fork_has_a_checkpoint_and_other_settings(
    store: RunStore, executed: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make(store, "parent", state="done")
    assert runs("fork", run) == 2
    assert "has no checkpoint; it has none" in capsys.readouterr().err
    CheckpointFolder(store.folder / run / "checkpoints").write(40, {})
    assert runs("fork", run, "--from", "41.0") == 2
    assert "has no checkpoint of step 41; it has 40" in capsys.readouterr().err
    assert runs("fork", run, "--set", "rate=1") == 2
    assert "has no 'rate'; it has lr" in capsys.readouterr().err
    with pytest.raises(Executed):
        runs("fork", run, "--set", "lr=1e-4", "--from", "40.0")
    environment = executed[-1][1]
    assert (environment["ROPEWALK_FORK"], environment["ROPEWALK_FORK_STEP"]) == (run, "40.0")
    assert json.loads(environment["ROPEWALK_SET"]) == {"lr": 1e-4}


def test_a_run_is_run_again_from_the_beginning(store: RunStore, executed: list[Any]) -> None:
    run = make(store, "again", state="failed")
    with pytest.raises(Executed):
        runs("rerun", run, "--set", "lr=fast")
    assert json.loads(executed[-1][1]["ROPEWALK_SET"]) == {"lr": "fast"}
    assert "ROPEWALK_CONTINUE" not in executed[-1][1]


def test_a_command_is_shown_and_not_run(
    store: RunStore, executed: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make(store, "dry", state="failed")
    assert runs("rerun", run, "--dry-run") == 0
    assert executed == []
    assert capsys.readouterr().out.startswith("cd / && ROPEWALK_SET='{}'")


def test_a_command_is_json_for_programs(
    store: RunStore, executed: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make(store, "dry-json", state="failed")
    assert runs("rerun", run, "--dry-run", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert executed == [] and shown.pop("variables")["ROPEWALK_SET"] == "{}"
    argv = shown.pop("argv")
    assert shown == {"folder": "/", "remark": ""}
    with pytest.raises(Executed):
        runs("rerun", run, "--json")
    output = capsys.readouterr()
    assert output.out == "", "that is for what the command prints"
    assert json.loads(output.err)["argv"] == argv == executed[-1][0]


def test_notebooks_are_told_what_to_do(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    notebook = make(store, "notebook", state="paused", facts={"is_notebook": True})
    assert runs("continue", notebook) == 2
    assert f"start its kernel with ROPEWALK_SET='{{}}' ROPEWALK_CONTINUE={notebook}" in capsys.readouterr().err
    search = make(store, "of-cells", state="done", kind="search", facts={"is_notebook": True})
    trial = make(store, "of-cells-0", state="paused", kind="trial", parent=search)
    assert runs("continue", trial) == 2
    assert "the function of the trial is not found; start a kernel with" in capsys.readouterr().err


# --- trials -----------------------------------------------------------------------------------------------------------


def trial_of(store: RunStore, search: str, search_state: str, trial_state: str) -> str:
    make(store, search, state=search_state, kind="search", facts={"argv": ["python", "search.py"], "cwd": "/"})
    facts = {"argv": [], "cwd": ""}
    return make(store, f"{search}-0", state=trial_state, kind="trial", parent=search, facts=facts)


@pytest.mark.parametrize(
    ("search_state", "trial_state"),
    [("done", "paused"), ("failed", "paused"), ("running", "stopped"), ("paused", "failed")],
)
def test_a_trial_that_its_search_never_begins_again_goes_on_by_itself(
    store: RunStore, executed: list[Any], search_state: str, trial_state: str
) -> None:
    trial = trial_of(store, f"alone-{search_state}", search_state, trial_state)
    with pytest.raises(Executed):
        runs("continue", trial)
    argv, environment = executed[-1]
    assert argv == ["python", "search.py"], "the command of the search has the function"
    assert (environment["ROPEWALK_CONTINUE"], environment["ROPEWALK_TRIAL"]) == (trial, trial)


def test_a_trial_of_a_search_that_runs_is_continued_by_it(
    store: RunStore, executed: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    trial = trial_of(store, "lively", "running", "paused")
    with Owner(store, trial, "running", "trial 0 goes on when a place is free") as owner:
        assert runs("continue", trial) == 0
    assert owner.actions == ["continue"] and executed == []
    assert "trial 0 goes on when a place is free" in capsys.readouterr().err


def test_the_answer_of_a_search_for_its_trial_is_json_for_programs(
    store: RunStore, executed: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    trial = trial_of(store, "lively-json", "running", "paused")
    with Owner(store, trial, "running", "trial 0 goes on"):
        assert runs("continue", trial, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["run"], report["action"], report["ok"], report["answer"]) == (
        trial,
        "continue",
        True,
        "trial 0 goes on",
    )
    assert executed == []


def test_a_trial_of_a_search_that_rests_waits_for_the_search(
    store: RunStore, executed: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    trial = trial_of(store, "resting", "paused", "paused")
    assert runs("continue", trial) == 2
    told = capsys.readouterr().err
    assert "ropewalk runs continue resting." in told and f"ropewalk runs fork {trial}" in told and executed == []


def test_a_trial_is_forked_also_without_a_checkpoint_and_so_is_its_fork(
    store: RunStore, executed: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    trial = trial_of(store, "source", "done", "done")
    assert runs("fork", trial, "--from", "3.0") == 2
    with pytest.raises(Executed):
        runs("fork", trial, "--set", "lr=0.2")
    assert "begins with the first step" in capsys.readouterr().err
    assert (executed[-1][1]["ROPEWALK_FORK"], executed[-1][1]["ROPEWALK_TRIAL"]) == (trial, trial)
    fork = make(store, "forked", state="paused", facts={"trial": trial, "argv": ["python", "search.py"]})
    with pytest.raises(Executed):
        runs("continue", fork)
    assert (executed[-1][1]["ROPEWALK_CONTINUE"], executed[-1][1]["ROPEWALK_TRIAL"]) == (fork, trial)


def test_a_database_does_not_choose_what_runs_here(
    store: RunStore, executed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(store, "shared", state="paused")

    class Shared:
        where = "postgresql://host/runs"

        def __init__(self) -> None:
            self.run, self.facts = store.run, store.facts

        def __enter__(self) -> Shared:
            return self

        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(runs_life, "opened", lambda where: Shared())
    with pytest.raises(RunUnsuitable, match="trust it with --trust-store"):
        runs("continue", run)
    assert executed == []
    assert runs("continue", run, "--dry-run") == 0
    with pytest.raises(Executed):
        runs("continue", run, "--trust-store")


@pytest.mark.parametrize("wrong", ["lr", "=3"])
def test_settings_have_names_and_values(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exit) as ended:
        parse_settings([wrong])
    assert ended.value.exit_code == 2
    assert "not of the form NAME=VALUE" in capsys.readouterr().err


def test_values_are_json_or_text() -> None:
    given = ["a=1", "b=1e-4", "c=true", "d=wide", 'e="1"', "f=a=b", "g="]
    assert parse_settings(given) == {
        "a": 1, "b": 1e-4, "c": True, "d": "wide", "e": "1", "f": "a=b", "g": "",
    }  # fmt: skip


def test_the_folder_of_a_run_must_still_be_there(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(store, "moved", state="paused", facts={"cwd": str(Path("/no/such/folder"))})
    assert runs("continue", run) == 2
    assert "its command cannot be run in /no/such/folder" in capsys.readouterr().err


def test_a_command_finds_what_a_killed_writer_left(store: RunStore) -> None:
    run = make(store, "left", state="failed")
    journal = RecordJournal(store)
    journal.append([RunRecord(run, Metrics("", ["loss"], [0.5], 7, 3.0))])
    journal.close(is_needed=True)
    assert runs("rerun", run, "--dry-run") == 0
    assert list(store.points(run, "loss").steps) == [7]
