"""A run goes on when the same command runs again, as in a job that is requeued."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.errors import RunOpen
from ropewalk.tracking.records import AttemptBegan, OwnerIs, RunCreated, RunRecord, StateIs
from ropewalk.tracking.resuming import unfinished_run
from ropewalk.tracking.store.store import RunStore
from tests.tracking.store.making import new_store, own_process

ELSEWHERE = OwnerIs("n1", 7, 5, "its boot")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with new_store(tmp_path) as made:
        yield made


def begin(store: RunStore, **options: Any) -> rw.tracking.Run:
    given: dict[str, Any] = {"name": "long", "resume": True, "system": False, **options}
    return rw.track("digits", store=store, **given)


def put(store: RunStore, owner: OwnerIs, state: str = "running", id: str = "a1", name: str = "long") -> None:
    now = store._clock()
    created = RunCreated("digits", name, "script", now, {}, {}, folder=str(store.folder / id))
    records = [created, owner, StateIs(state, now), AttemptBegan(1, owner.host, owner.pid, now)]
    store.apply([RunRecord(id, record) for record in records])


def count(store: RunStore, until: int, **options: Any) -> tuple[str, int, list[float]]:
    """Count to five in a run, or fail at a step; its id, its attempt, and its steps."""
    steps: list[float] = []
    with begin(store, **options) as run:
        run.restore()
        for step in run.steps(5):
            steps.append(step)
            run.checkpoint({"step": step})
            if step == until:
                raise ValueError("the job has come to its end")
    return run.id, run.attempt, steps


def test_the_same_command_goes_on_until_the_run_is_done(store: RunStore) -> None:
    """The documentation said so, and each job of a chain began at the first step."""
    for until in (2, 4):
        with pytest.raises(ValueError, match="come to its end"):
            count(store, until)
    run, attempt, steps = count(store, 0)
    assert (attempt, steps) == (3, [5])
    assert [one.id for one in store.runs()] == [run] and store.run(run).state == "done"
    again, attempt, steps = count(store, 0)
    assert again != run and (attempt, steps) == (1, [1, 2, 3, 4, 5]), "a run that is done does not go on"


def test_a_run_that_others_have_written_into_a_database_does_not_go_on(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder was made, checkpoints were read from there, and the policy removed those of this user in it."""
    with pytest.raises(ValueError, match="come to its end"):
        count(store, 2)
    now = store._clock()
    created = RunCreated("digits", "long", "script", now + 1, {}, {}, folder=str(tmp_path / "home" / "a1"))
    store.apply([RunRecord("a1", record) for record in (created, ELSEWHERE, StateIs("paused", now))])
    monkeypatch.setattr(store, "where", "postgresql://host/runs")
    assert count(store, 0)[1:] == (2, [3, 4, 5]), "the run of this user goes on"
    assert not (tmp_path / "home").exists()


def test_a_run_of_another_name_or_project_does_not_go_on(store: RunStore) -> None:
    put(store, ELSEWHERE, "stopped")
    assert count(store, 0, resume=False)[1] == 1
    assert count(store, 0, name="longer")[1] == 1
    with rw.track("other", name="long", resume=True, store=store, system=False) as run:
        assert run.attempt == 1


def test_what_was_asked_for_from_a_terminal_counts_more(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, ELSEWHERE, "stopped")
    put(store, ELSEWHERE, "stopped", "b2", "older")
    monkeypatch.setenv("ROPEWALK_CONTINUE", "b2")
    with begin(store) as run:
        assert (run.id, run.attempt) == ("b2", 2)
    monkeypatch.setenv("ROPEWALK_SET", "{}")  # `ropewalk runs rerun`
    with begin(store) as run:
        assert run.attempt == 1


def test_a_run_that_a_killed_host_wrote_is_waited_for(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put(store, ELSEWHERE)
    heard, slept = store.run("a1").heard, list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        monkeypatch.setattr(store, "_clock", lambda: heard + len(slept))

    monkeypatch.setattr("ropewalk.tracking.beginning.unfinished_run", functools.partial(unfinished_run, sleep=sleep))
    with begin(store) as run:
        assert (run.id, run.attempt) == ("a1", 2)
    assert len(slept) == 61
    assert "long (a1) was running a moment ago in process 7 on n1, which may have been killed" in caplog.text


def test_a_run_that_runs_is_not_begun_again(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, own_process())
    with pytest.raises(RunOpen, match="should continue here, but is running in process"):
        begin(store)
    put(store, ELSEWHERE, id="b2", name="far")

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        store._clock = store._writer._clock = lambda: heard + 20
        store.apply([RunRecord("b2", ELSEWHERE)])

    heard, slept = store.run("b2").heard, list[float]()
    monkeypatch.setattr("ropewalk.tracking.beginning.unfinished_run", functools.partial(unfinished_run, sleep=sleep))
    with pytest.raises(RunOpen, match="is running in process 7 on n1"):
        begin(store, name="far")
    assert slept == [1.0]


def test_a_run_that_goes_on_by_its_name_needs_one(store: RunStore) -> None:
    with pytest.raises(ValueError, match="resume=True needs a name"):
        begin(store, name=None)
