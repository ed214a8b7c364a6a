"""What the page does with runs always has an answer."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ropewalk.page.actions import ActionFailed
from ropewalk.page.runs import run_actions
from ropewalk.page.runs.run_actions import ACTIONS, RunAction, perform
from ropewalk.tracking import run_requests
from ropewalk.tracking.checkpoints import CheckpointFolder
from ropewalk.tracking.records import StateIs
from ropewalk.tracking.store.store import RunStore
from tests.tracking.store.making import begin, new_store, own_process


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with new_store(tmp_path) as made:
        yield made


def command(*words: str, cwd: str = "/") -> dict[str, Any]:
    return {"facts": {"argv": [sys.executable, "-I", *words], "cwd": cwd}}


def test_a_run_that_ended_cannot_be_paused_and_the_answer_says_so(store: RunStore) -> None:
    begin(store, "a", StateIs("done", 2.0))
    with pytest.raises(ActionFailed, match="is done; only a running one can be paused"):
        perform(store, RunAction("pause", "a"))


def test_a_request_without_an_answer_says_who_is_silent(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(store, "a", own_process(), StateIs("running", 2.0))
    monkeypatch.setattr(run_requests.time, "sleep", lambda seconds: None)
    clock = iter(range(0, 1000, 3))
    monkeypatch.setattr(run_requests.time, "monotonic", lambda: float(next(clock)))
    with pytest.raises(ActionFailed, match=f"process {os.getpid()} .* has not answered within .*Kill ends"):
        perform(store, RunAction("pause", "a"))


def test_a_command_outlives_the_page_and_its_output_is_kept(store: RunStore, tmp_path: Path) -> None:
    program = "import os, time; print(os.environ['ROPEWALK_SET'], flush=True); time.sleep(100)"
    begin(store, "a", StateIs("done", 2.0), config={"lr": 0.1}, **command("-c", program))
    words = perform(store, RunAction("rerun", "a", {"lr": 0.2}))
    pid = int(words.split("process ")[1].split(";")[0])
    process = psutil.Process(pid)
    assert os.getsid(pid) == pid
    (file,) = (store.folder / run_actions.STARTED).iterdir()
    while not file.read_bytes():
        time.sleep(0.01)
    assert file.read_text() == '{"lr": 0.2}\n' and file.stat().st_mode & 0o077 == 0
    process.send_signal(signal.SIGKILL)
    while psutil.pid_exists(pid):  # a thread waits for it, so that it is no zombie
        time.sleep(0.01)


def test_a_command_that_fails_at_once_is_told_with_its_output(store: RunStore) -> None:
    begin(store, "a", StateIs("failed", 2.0), **command("-c", "raise SystemExit('no such module')"))
    with pytest.raises(ActionFailed, match=r"(?s)exit code 1\n.*no such module"):
        perform(store, RunAction("continue", "a"))


def test_a_command_that_cannot_be_run_is_told(store: RunStore) -> None:
    begin(store, "a", StateIs("failed", 2.0), **command("-c", "", cwd="/no/such/folder"))
    with pytest.raises(ActionFailed, match="cannot be run in /no/such/folder"):
        perform(store, RunAction("rerun", "a"))


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (RunAction("fork", "a"), "has no checkpoint"),
        (RunAction("rerun", "a", {"rate": 1}), "has no 'rate'"),
        (RunAction("continue", "a"), "is done; start over"),
        (RunAction("stop", "zzz"), "no run has the id"),
        (RunAction("shuffle", "a"), "there is no action 'shuffle'"),
    ],
)
def test_what_cannot_be_done_says_why(store: RunStore, action: RunAction, words: str) -> None:
    begin(store, "a", StateIs("done", 2.0), config={"lr": 0.1}, **command("-c", ""))
    with pytest.raises(ActionFailed, match=re.escape(words)):
        perform(store, action)


def test_the_store_is_changed(store: RunStore) -> None:
    begin(store, "a", StateIs("done", 2.0))
    assert perform(store, RunAction("note", "a", text="good")) and store.notes("a")[0].text == "good"
    assert perform(store, RunAction("archive", "a")) and store.run("a").archived
    assert perform(store, RunAction("unarchive", "a")) and not store.run("a").archived
    assert perform(store, RunAction("delete", "a")) and store.runs() == []


def test_a_checkpoint_is_pinned(store: RunStore) -> None:
    folder = store.folder / "a"
    begin(store, "a", StateIs("done", 2.0), folder=str(folder))
    CheckpointFolder(folder / "checkpoints").write(5, {})
    assert (
        perform(store, RunAction("pin", "a", step=5.0)) == "the checkpoint of step 5 is kept whatever the policy says"
    )
    assert CheckpointFolder(folder / "checkpoints").pinned() == {5}
    assert perform(store, RunAction("unpin", "a", step=5.0))
    with pytest.raises(ActionFailed, match="has no checkpoint of step 6; there are 5"):
        perform(store, RunAction("pin", "a", step=6.0))


def test_all_actions_are_known() -> None:
    assert len(set(ACTIONS)) == 12


def test_a_run_is_begun_again_twice_in_one_second(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    # The second command was not run: the file of its output had the name of the first one's.
    begin(store, "a", StateIs("done", 2.0), **command("-c", "pass"))
    monkeypatch.setattr(run_actions.time, "strftime", lambda *_: "20260101-000000")
    for _ in range(2):
        assert "ended with exit code 0" in perform(store, RunAction("rerun", "a"))
    assert len(list((store.folder / run_actions.STARTED).iterdir())) == 2
