"""A trainer as others see it while it runs: what they are told is what it reports itself."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import ropewalk as rw
from ropewalk.control.launchers import Launcher, find_launchers
from ropewalk.control.server import Look, Stop, ViewIs
from ropewalk.control.view import View
from ropewalk.engines import ENGINES
from ropewalk.engines.engine import JobSpec, JobState, JobStatus
from ropewalk.errors import StageLost
from ropewalk.processes import agent_bootstrap
from ropewalk.training.panels.pipeline import bubble_of
from ropewalk.training.timeouts import TrainerTimeouts
from ropewalk.training.trainer import Trainer
from tests.patience import PATIENCE_S, wait_until
from tests.population.neighbours import Neighbours
from tests.training.faulty_training import Job, batch, pids

ALL: dict[str, int] = dict.fromkeys(("pipeline", "loss", "memory", "versions", "links", "exchange", "snapshots"), 0)


def launcher(session: rw.Session) -> Launcher:
    """The only thing that runs in a session, as others find it."""
    (found,) = [one for one in find_launchers([session.folder.parent]) if one.file.parent == session.folder]
    return found


def looked_at(found: Launcher, panels: dict[str, int] | None = None) -> View:
    with found.connect() as connection:
        return connection.ask(Look(panels or {}), ViewIs).view


@pytest.fixture
def training(trainings: rw.Session) -> Iterator[Trainer]:
    with Job(num_steps=8).trainer(trainings, name="unet") as trainer:
        for step in range(8):
            trainer.step(*batch(step))
        trainer.drain()
        yield trainer


def test_what_others_see_is_what_the_trainer_reports(training: Trainer, trainings: rw.Session) -> None:
    found = launcher(trainings)
    assert (found.kind, found.name) == ("trainer", "unet")
    view = looked_at(found, ALL)
    report, timeline = training.report(), training.timeline()
    assert (view.kind, view.name, view.state, view.facts["step"]) == ("trainer", "unet", "running", 8)
    assert view.facts["step_time_s"] == pytest.approx(timeline.step_s) and view.facts["bubble"] == bubble_of(timeline)
    assert [(one.pid, one.group, one.done) for one in view.processes] == [
        (worker.pid, f"stage {number}", 7) for number, worker in enumerate(report.workers)
    ]
    assert set(view.offers) == set(ALL) - {"exchange"} == view.panels.keys()
    assert view.panels["pipeline"]["measured"] == [
        [index, *row]
        for index, worker in enumerate(timeline.workers)
        for row in (
            [
                span.action.kind.value,
                span.action.stage,
                span.action.micro_batch,
                round(span.start_s, 7),
                round(span.end_s, 7),
            ]
            for span in timeline.spans(worker)
        )
    ]
    links = view.panels["links"]["links"]
    for link in report.links:
        shown = links[f"{link.source} -> {link.target}"]
        assert (shown["total_bytes"], shown["step_bytes"]) == (link.total_bytes, pytest.approx(link.step_bytes))
    assert [stage["versions"] for stage in view.panels["versions"]["stages"]] == [[8], [8]]
    for stage, held in zip(("0", "1"), view.panels["memory"]["workers"], strict=True):
        assert held["process_bytes"] > 10**7 and held["held"]["optimizer"] >= 2 * held["held"]["weights"], stage


def test_losses_come_once_with_a_cursor(training: Trainer, trainings: rw.Session) -> None:
    found = launcher(trainings)
    first = looked_at(found, {"loss": 0}).panels["loss"]
    assert first["step"] == list(range(8))
    handle = training.step(*batch(8))
    loss = float(handle.metrics().loss)
    later = looked_at(found, {"loss": first["cursor"]}).panels["loss"]
    assert (later["step"], later["loss"]) == ([8], [pytest.approx(loss)])


def test_a_death_is_seen_with_its_cause_and_the_steps_that_are_repeated(
    training: Trainer, trainings: rw.Session
) -> None:
    found, pid = launcher(trainings), pids(training)[1]
    os.kill(pid, signal.SIGKILL)
    training.step(*batch(8)).metrics()
    training.drain()
    view = wait_until(lambda: looked_at(found, ALL), wanted=lambda view: all(one.doing for one in view.processes))
    assert view.facts["restarts"] == 1 and "SIGKILL" in view.last_failure
    kinds = [(event.kind, event.process) for event in view.events]
    assert kinds[0] == ("plan", "") and ("death", view.processes[1].name) in kinds and kinds[-1] == ("restart", "")
    assert pid not in [one.pid for one in view.processes] and view.processes[1].restarts == 1
    assert {one["state"] for one in view.panels["snapshots"]["snapshots"]} >= {"whole", "superseded"}
    assert 0 < float(view.facts["goodput"]) < 1


def test_a_stage_that_is_stopped_falls_silent_and_the_others_are_still_seen(training: Trainer) -> None:
    pid = pids(training)[0]
    training.view(ALL)
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(training.view, wanted=lambda view: view.processes[0].silent_s > 1 > view.processes[1].silent_s)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert wait_until(training.view, wanted=lambda view: view.processes[0].silent_s < 0.6)


def test_a_process_can_be_killed_from_outside_and_training_goes_on(training: Trainer, trainings: rw.Session) -> None:
    view = training.view()
    assert "kill" in view.process_actions
    words = training._target.act("kill", view.processes[0].name)  # pyright: ignore[reportPrivateUsage]
    assert view.processes[0].name in words
    training.step(*batch(8)).metrics()
    assert training.view().facts["restarts"] == 1


def test_it_can_be_stopped_from_outside(training: Trainer, trainings: rw.Session) -> None:
    with launcher(trainings).connect() as connection:
        assert connection.ask(Stop(None), ViewIs, PATIENCE_S).view.state == "stopped"
    with pytest.raises(StageLost):
        training.step(*batch(8)).metrics()
    assert training.view().state == "stopped"


class Queue(Neighbours):
    """A cluster on which other jobs run."""

    def submit(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> list[str]:
        return [f"{request_id}.{number}" for number in range(count)]

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        return dict.fromkeys(ids, JobStatus(JobState.PENDING, reason="other jobs hold all nodes (Resources)"))

    def cancel(self, ids: Sequence[str]) -> None:
        """Nothing runs."""


def test_while_its_jobs_wait_the_reason_is_seen_and_it_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was shown as "no processes, step 0"; only the terminal in which it was started had the queue's reason."""
    monkeypatch.setitem(ENGINES, "queue", f"{__name__}:Queue")
    monkeypatch.setattr(agent_bootstrap, "_PATIENCE_S", 0.0)
    with rw.Session("queue") as session, ThreadPoolExecutor(1) as thread:
        timeouts = TrainerTimeouts(start_s=0.1)  # which the time in the queue is not part of
        trainer = Job().trainer(session, name="unet", timeouts=timeouts)
        began = time.monotonic()
        beginning = thread.submit(trainer.__enter__)
        view = wait_until(trainer.view, wanted=lambda view: bool(view.events) or beginning.done())
        wait_until(trainer.view, wanted=lambda _: beginning.done() or time.monotonic() - began > 20 * timeouts.start_s)
        assert not beginning.done()
        assert "waits: other jobs hold all nodes (Resources)" in view.events[0].text
        assert view.state == "starting" and {one.state for one in view.processes} == {"starting"}
        with launcher(session).connect() as connection:
            assert connection.ask(Stop(None), ViewIs, PATIENCE_S).view.state == "stopped"
        with pytest.raises(StageLost):
            beginning.result(PATIENCE_S)
        trainer.close()
    assert trainer.view().state == "stopped"


def test_after_the_end_the_last_state_is_shown(trainings: rw.Session, tmp_path: Path) -> None:
    with Job(num_steps=4).trainer(trainings) as trainer:
        for step in range(4):
            trainer.step(*batch(step))
        path = trainer.save(tmp_path).wait()
        trainer.view(ALL)
    view = trainer.view(ALL)
    assert view.state == "completed" and view.has_ended
    assert view.panels["loss"]["step"] == [0, 1, 2, 3] and view.panels["pipeline"]["measured"]
    assert [str(path) in event.text for event in view.events if event.kind == "checkpoint"] == [True]


def test_a_trainer_that_an_exception_ends_has_failed() -> None:
    trainer = Job().trainer(None, inline=True)
    with pytest.raises(ArithmeticError), trainer:
        raise ArithmeticError("seven is not even")
    assert trainer.view().state == "failed"


@pytest.mark.parametrize(
    "job", [Job(num_groups=1, replicas=2), Job(schedule="pipedream")], ids=["replicas", "pipedream"]
)
def test_a_trainer_in_this_thread_shows_the_same(job: Job) -> None:
    trainer = job.trainer(None, inline=True, exchange="none" if job.replicas == 2 else None)
    assert trainer.view().state == "starting"
    with trainer:
        for step in range(3):
            trainer.step(*batch(step))
        trainer.drain()
        view = trainer.view(ALL)
        assert view.facts["step"] == 3 and view.processes == () and view.panels["loss"]["step"] == [0, 1, 2]
        assert view.facts["step_time_s"] == pytest.approx(trainer.timeline().step_s)
        assert ("exchange" in view.offers) is (job.replicas == 2) and "snapshots" not in view.offers
        if job.replicas == 2:
            (row,) = view.panels["exchange"]["rows"]
            assert row[2] == pytest.approx(row[3]) and row[2] > 0, "nothing is compressed"
        assert json.dumps(view.to_json()) and "<strong>trainer</strong>" in _html(trainer)


def _html(trainer: Any) -> str:
    return trainer._repr_html_()
