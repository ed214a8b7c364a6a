"""`rw.track`, with a real store; what ends processes is in `test_beginning_processes.py`."""

from __future__ import annotations

import argparse
import atexit
import inspect
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.errors import RunOpen, SettingsError, StoreError
from ropewalk.tracking import CheckpointPolicy, RunPaused, RunStopped, RunStore, RunTerminated, current_run
from ropewalk.tracking import facts as run_facts
from ropewalk.tracking.records import AttemptBegan, OwnerIs, RunCreated, RunRecord, StateIs
from ropewalk.tracking.sinks.sink import CopiedRun, RunSink
from ropewalk.tracking.tracker_names import ARGUMENTS, METHODS
from tests.patience import PATIENCE_S


@pytest.fixture(autouse=True)
def _cheap_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_facts, "git_facts", lambda folder: {"commit": "abc"})


def begin(store: RunStore, **options: Any) -> rw.tracking.Run:
    given: dict[str, Any] = {"system": False, **options}
    return rw.track("digits", store=store, **given)


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_everything_about_a_run_is_kept(store: RunStore, tmp_path: Path) -> None:
    with begin(store, config={"lr": 0.1}, name="first", labels=["new"], notes="a remark", seed=3) as run:
        assert current_run() is run and run.seed == 3 and run.attempt == 1
        for _ in run.steps(3):
            run.log(loss=run.step)
            run.checkpoint({"n": run.step})
        assert run.flush()
        assert store.run(run.id).state == "running"
    assert current_run() is None
    row = store.run("first")
    assert (row.project, row.state, row.config, row.labels, row.kind) == (
        "digits",
        "done",
        {"lr": 0.1},
        ("new",),
        "script",
    )
    assert row.owner == run_facts.this_process() and Path(row.folder) == tmp_path / "runs" / run.id
    assert oct(os.stat(row.folder).st_mode)[-3:] == "700"
    assert list(store.points(run.id, "loss").values) == [1, 2, 3]
    assert [one.step for one in store.checkpoints(run.id)] == [3]
    assert [one.text for one in store.notes(run.id)] == ["a remark"]
    (attempt,) = store.attempts(run.id)
    assert (attempt.outcome, attempt.at_step, attempt.pid) == ("done", 3, os.getpid())
    facts = store.facts(run.id)
    assert facts["git"] == {"commit": "abc"} and facts["seed"] == 3 and facts["packages"]["msgspec"]
    assert facts["argv"][0] == sys.executable


def test_the_use_of_the_machine_is_measured_also_in_a_short_run(store: RunStore) -> None:
    with begin(store, system=True) as run:
        pass
    assert {"cpu_percent", "process_memory_bytes"} <= {
        one.name for one in store.series(run.id) if one.group == "system"
    }


def test_code_that_is_in_no_repository_is_kept(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print()")
    monkeypatch.setattr(run_facts, "git_facts", lambda folder: {})
    monkeypatch.setattr(run_facts, "script_path", lambda: script)
    with begin(store) as run:
        pass
    assert [one.name for one in store.artifacts(run.id)] == ["code/train.py"]
    assert run.name.startswith("train-")


def test_a_failure_is_kept_with_its_cause_and_class(store: RunStore) -> None:
    run = begin(store)
    with pytest.raises(ValueError, match="batch 7"), run:
        raise ValueError("batch 7 is bad")
    row, (attempt,) = store.run(run.id), store.attempts(run.id)
    assert row.state == attempt.outcome == "failed"
    assert row.why.startswith("Traceback") and row.why.endswith("ValueError: batch 7 is bad\n")
    assert attempt.failure_class.endswith(": batch N is bad") and "test_beginning.py" in attempt.failure_class


def test_names_of_other_trackers_are_answered_with_ours(store: RunStore) -> None:
    track: Any = rw.track
    with pytest.raises(TypeError, match=r"track has no argument tags; write labels=\[...\]"):
        track("digits", tags=["a"])
    with pytest.raises(TypeError, match="track has no argument entity; write nothing: a run is always kept"):
        track("digits", entity="us")
    run: Any
    with rw.track("digits", store=store, system=False) as run:
        with pytest.raises(AttributeError, match=r"'Run' object has no attribute 'log_metric'; write run.log\(loss=x"):
            run.log_metric("loss", 1.0)
        assert not hasattr(run, "anything")
    parameters = inspect.signature(rw.track).parameters
    assert not [name for some in ARGUMENTS.values() for name in some if name in parameters]
    assert not [name for some in METHODS.values() for name in some if hasattr(rw.tracking.Run, name)]


def test_a_second_run_inside_one_is_an_error_that_says_what_to_do(store: RunStore) -> None:
    with begin(store) as run:
        with pytest.raises(RunOpen, match=f"writes the run {run.name} .* with group=") as refused:
            begin(store)
        assert refused.value.run == run.id
    with begin(store) as second:
        assert second.id != run.id


@pytest.mark.parametrize(
    ("given", "words"),
    [
        # These failed as "'Namespace' object has no attribute 'items'".
        ({"config": argparse.Namespace(lr=0.1)}, r"config is of type Namespace; .* vars\(arguments\)"),
        ({"config": CheckpointPolicy()}, r"of type CheckpointPolicy; .* dataclasses\.asdict\(settings\)"),
        # The labels were g, o, o and d.
        ({"labels": "good"}, r"labels is the text 'good'; give a list, \['good'\]"),
        ({"sinks": "csv"}, r"sinks is the text 'csv'"),
    ],
)
def test_settings_without_names_and_a_text_for_a_list_are_refused(
    store: RunStore, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        begin(store, **given)
    assert current_run() is None and not store.runs()


def test_a_store_that_cannot_be_opened_is_an_error_before_anything_begins(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no store")
    with pytest.raises(StoreError):
        rw.track(store=tmp_path / "file")
    assert current_run() is None


# --- how it ends ------------------------------------------------------------------------------------------------------


def send_to_this_process(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(20)


def test_ctrl_c_stops_a_run(store: RunStore) -> None:
    run = begin(store)
    with pytest.raises(KeyboardInterrupt), run:
        send_to_this_process(signal.SIGINT)
    assert (store.run(run.id).state, store.run(run.id).why) == ("stopped", "interrupted by Ctrl-C (SIGINT)")


def test_ctrl_c_while_a_run_begins_leaves_none_open(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    # In a notebook, the next `rw.track` was refused: this process had a run already, which nobody could end.
    with monkeypatch.context() as patch:
        patch.setattr(rw.tracking.Run, "flush", lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            begin(store, name="first")
    assert current_run() is None
    assert (store.run("first").state, store.run("first").why) == ("stopped", "interrupted by Ctrl-C (SIGINT)")
    with begin(store, name="second"):
        pass


def test_sigterm_stops_a_run_and_the_handler_goes_with_it(store: RunStore) -> None:
    before = signal.getsignal(signal.SIGTERM)
    run = begin(store)
    with pytest.raises(RunTerminated) as ended, run:
        send_to_this_process(signal.SIGTERM)
    assert ended.value.code == 143
    assert (store.run(run.id).state, store.run(run.id).why) == ("stopped", "ended by SIGTERM")
    assert signal.getsignal(signal.SIGTERM) == before == signal.SIG_DFL


def test_a_handler_that_is_set_during_a_run_stays(store: RunStore) -> None:
    before, run = signal.getsignal(signal.SIGTERM), begin(store)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        run.finish()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_sigterm_ends_a_process_whose_run_was_finished_by_another_thread(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A thread cannot remove the handler, which went on to take each SIGTERM for one that comes while the run ends.
    before, run = signal.getsignal(signal.SIGTERM), begin(store)
    thread = threading.Thread(target=run.finish)
    thread.start()
    thread.join()
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    try:
        signal.raise_signal(signal.SIGTERM)
        assert sent == [(os.getpid(), signal.SIGTERM)] and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_run_without_with_ends_with_the_process(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Any] = []
    monkeypatch.setattr(atexit, "register", registered.append)
    run = begin(store)
    monkeypatch.setattr(sys, "last_value", ValueError("uncaught"), raising=False)
    registered[0]()
    assert store.run(run.id).state == "failed" and "uncaught" in store.run(run.id).why
    assert current_run() is None


def test_a_fork_of_the_process_writes_nothing(store: RunStore) -> None:
    with begin(store) as run:
        run.log(loss=1)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                run.log(loss=2)
                run.finish("failed", "the child")
                code = 0 if current_run() is None else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        run.log(loss=3)
    assert list(store.points(run.id, "loss").values) == [1, 3]
    assert store.run(run.id).state == "done" and len(store.attempts(run.id)) == 1


# --- requests ---------------------------------------------------------------------------------------------------------


def asking(store: RunStore, run: str, action: str) -> tuple[bool | None, str]:
    number = store.request(run, action)
    wait_until(lambda: (found := store.requested(number)) is not None and found.answered is not None)
    found = store.requested(number)
    assert found is not None
    return found.ok, found.answer


def in_a_thread(store: RunStore, run: str, action: str) -> tuple[threading.Thread, list[tuple[bool | None, str]]]:
    answers: list[tuple[bool | None, str]] = []
    thread = threading.Thread(target=lambda: answers.append(asking(store, run, action)))
    thread.start()
    return thread, answers


def test_a_run_pauses_by_request_and_goes_on(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = begin(store, checkpoints=CheckpointPolicy(every=10**9))
    thread, answers = in_a_thread(store, run.id, "pause")

    def train() -> None:
        for step in run.steps():
            time.sleep(0.001)
            run.checkpoint({"n": step})

    with pytest.raises(RunPaused) as paused, run:
        train()
    thread.join()
    assert answers == [(True, answers[0][1])] and "pauses at its next checkpoint" in answers[0][1]
    row = store.run(run.id)
    assert row.state == "paused" and f"ropewalk runs continue {run.id}" in caplog.text
    assert [one.kind for one in store.events(run.id)] == ["request"]

    monkeypatch.setenv("ROPEWALK_CONTINUE", run.id)
    with begin(store, config={"lr": 3}) as again:
        assert "ROPEWALK_CONTINUE" not in os.environ
        assert (again.id, again.attempt, again.name, again.folder) == (run.id, 2, run.name, run.folder)
        found = again.restore()
        assert found is not None and found.state == {"n": paused.value.step}
        assert next(again.steps()) == paused.value.step + 1
    assert store.run(run.id).state == "done" and store.run(run.id).config == {"lr": 3}
    assert [(one.number, one.outcome, one.from_step) for one in store.attempts(run.id)] == [
        (1, "paused", 0),
        (2, "done", paused.value.step),
    ]


def test_a_run_without_steps_is_stopped_while_it_waits(store: RunStore) -> None:
    run = begin(store)
    thread, answers = in_a_thread(store, run.id, "stop")
    with pytest.raises(RunStopped), run:
        time.sleep(60)
    thread.join()
    assert answers == [(True, "it does not use run.steps, and was interrupted as by SIGTERM")]
    assert (store.run(run.id).state, store.run(run.id).why) == ("stopped", "stopped by request")


@pytest.mark.parametrize("total", [2, None])
def test_a_run_is_stopped_while_it_evaluates_after_its_loop(total: int | None, store: RunStore) -> None:
    """It was told to stop after its step, which it never did, and went on for hours."""
    run = begin(store)
    for step in run.steps(total):
        if step == 2:
            break
    ok, words = asking(store, run.id, "pause")
    assert ok and words.startswith("it has left run.steps after step 2, and pauses only at a checkpoint of a further")
    thread, answers = in_a_thread(store, run.id, "stop")
    with pytest.raises(RunStopped), run:
        time.sleep(60)
    thread.join()
    assert answers == [(True, "it has left run.steps after step 2, and was interrupted as by SIGTERM")]
    assert (store.run(run.id).state, store.run(run.id).why) == ("stopped", "stopped by request")


def test_what_a_run_cannot_do_is_answered(store: RunStore) -> None:
    with begin(store) as run:
        ok, words = asking(store, run.id, "fly")
        assert not ok and "cannot do 'fly'; it can pause, stop and kill" in words


def test_a_killed_run_goes_on_and_its_first_attempt_is_lost(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    here = run_facts.this_process()
    gone = OwnerIs(here.host, 2**22 + 1, 5, here.boot)
    created = RunCreated("digits", "first", "script", 1.0, {}, {}, folder=str(store.folder / "a1"))
    records = [created, gone, StateIs("running", 2.0), AttemptBegan(1, here.host, gone.pid, 2.0)]
    store.apply([RunRecord("a1", record) for record in records])
    monkeypatch.setenv("ROPEWALK_CONTINUE", "a1")
    with begin(store) as run:
        assert run.attempt == 2 and run.flush(20)
        monkeypatch.setattr("ropewalk.tracking.beginning.current_run", lambda: None)
        monkeypatch.setenv("ROPEWALK_CONTINUE", "a1")
        with pytest.raises(RunOpen, match=f"is running in process {os.getpid()} on .*: ropewalk runs pause a1"):
            begin(store)
    assert [(one.outcome, one.cause) for one in store.attempts("a1")] == [
        ("lost", f"process {gone.pid} on {here.host} ended without a word"),
        ("done", ""),
    ]


# --- forks ------------------------------------------------------------------------------------------------------------


def test_a_fork_has_other_settings_and_the_checkpoint(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with begin(store, config={"lr": 0.1, "model": {"layers": 2}}, checkpoints=CheckpointPolicy(keep=None)) as parent:
        for step in parent.steps(3):
            parent.checkpoint({"n": step})
    monkeypatch.setenv("ROPEWALK_FORK", parent.id)
    monkeypatch.setenv("ROPEWALK_FORK_STEP", "2.0")
    monkeypatch.setenv("ROPEWALK_SET", '{"lr": 0.01, "model.layers": 3}')
    with begin(store, config={"lr": 0.1, "model": {"layers": 2}}) as run:
        assert dict(run.config) == {"lr": 0.01, "model": {"layers": 3}}
        found = run.restore()
        assert found is not None and found.state == {"n": 2} and list(run.steps(3)) == [3]
    row = store.run(run.id)
    assert (row.parent, row.parent_step, row.config) == (parent.id, 2, {"lr": 0.01, "model": {"layers": 3}})


def test_a_fork_of_a_complete_run_says_that_no_step_is_left(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with begin(store) as parent:
        for step in parent.steps(3):
            parent.checkpoint({"n": step})
    assert not caplog.messages
    monkeypatch.setenv("ROPEWALK_FORK", parent.id)
    with begin(store) as run:
        run.restore()
        assert list(run.steps(3)) == []
    assert caplog.messages[-1].startswith(
        "run.steps(3) has no step left: the checkpoint that was restored is of step 3"
    )


def test_a_setting_that_the_script_does_not_have_is_named(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_SET", '{"rate": 0.01}')
    with pytest.raises(SettingsError, match="--set rate: the configuration of the script has no 'rate'; it has lr"):
        begin(store, config={"lr": 0.1})
    assert store.runs() == []


# --- sinks ------------------------------------------------------------------------------------------------------------


class Faulty(RunSink):
    """A sink that fails where it is told to."""

    def __init__(self, at: str) -> None:
        self.at, self.is_closed = at, False

    def begin(self, run: CopiedRun) -> None:
        if self.at == "begin":
            raise ConnectionError("no server")

    def apply(self, batch: Any) -> None:
        raise ConnectionError("no server")

    def close(self) -> None:
        self.is_closed = True


def test_a_sink_that_cannot_begin_ends_track(store: RunStore) -> None:
    sink = Faulty("begin")
    with pytest.raises(ConnectionError):
        begin(store, sinks=[sink])
    assert sink.is_closed and current_run() is None and store.runs() == []


@pytest.fixture
def _short_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropewalk.tracking.detached_run._END_S", 0.05)


@pytest.mark.usefixtures("_short_end")
def test_a_sink_that_fails_disturbs_neither_run_nor_store(store: RunStore, caplog: pytest.LogCaptureFixture) -> None:
    with begin(store, sinks=[Faulty("apply"), "csv"]) as run:
        run.log(loss=1)
    assert list(store.points(run.id, "loss").values) == [1] and store.run(run.id).state == "done"
    assert (run.folder / "metrics.csv").read_text().startswith("group,name,step,time,value\n,loss,1,")
    assert "cannot be written to Faulty at the moment (ConnectionError: no server)" in caplog.text


def test_a_folder_that_cannot_be_made_is_named_with_what_to_do(store: RunStore, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        StoreError, match=r"its folder cannot be made: .*Not a directory.*ROPEWALK_STORE, or say folder="
    ):
        begin(store, folder=tmp_path / "file")
    assert store.runs() == [] and current_run() is None
