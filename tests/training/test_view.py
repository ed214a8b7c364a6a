"""What a trainer shows of itself, from what its run and its workers say."""

from __future__ import annotations

from dataclasses import replace

from ropewalk.control.view import EventView, ProcessView, View
from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.plans import PlanWorker
from ropewalk.training.history import TrainingHistory
from ropewalk.training.loss_history import StepLoss
from ropewalk.training.panels.pipeline import last_step
from ropewalk.training.recorder import Recorder
from ropewalk.training.stage_samples import TimedSample
from ropewalk.training.trainer_html import trainer_html
from ropewalk.training.view import TrainerMoment, stragglers, trainer_view
from ropewalk.training.worker_sample import WorkerSample
from tests.training.panels.sampled import sampled

EMPTY = TrainerMoment("unet", "ab", 12, "starting", at=1010.0, now_s=50.0, began=1000.0)


def program(*processes: ProcessView, events: tuple[EventView, ...] = ()) -> View:
    return View(
        kind="program",
        name="unet",
        id="cd",
        pid=12,
        state="running",
        started=1000.0,
        at=1010.0,
        processes=processes,
        events=events,
        actions=("stop",),
        process_actions=("kill", "restart", "stack"),
    )


def stage_process(seat: int, state: str = "running") -> ProcessView:
    return ProcessView(
        name=f"stages.{seat}",
        group="stages",
        kind="service",
        pid=100 + seat,
        state=state,
        doing="work, stay",
        doing_s=9.0,
    )


def moment() -> TrainerMoment:
    timeline, schedule, samples = sampled()
    first, second = timeline.plan.workers
    timed = {
        first: TimedSample(replace(samples[first], pid=101, doing="at B0:3", memory_bytes=7), 49.5),
        second: TimedSample(replace(samples[second], pid=100), 47.0),
    }
    return replace(
        EMPTY,
        state="running",
        history=TrainingHistory(lambda: 1000.0),
        plan=timeline.plan,
        schedule=schedule.name,
        num_steps=9,
        loss=StepLoss(7, 1009.0, 0.25, None),
        rates=(2.0, 64.0),
        samples=timed,
        measured=last_step(timeline.plan, schedule, samples, {}),
        program=program(stage_process(0), stage_process(1), stage_process(2), stage_process(3, "restarting")),
        seats={first: 1, second: 0},
    )


def test_before_it_has_begun_a_trainer_shows_its_name() -> None:
    view = trainer_view(EMPTY)
    assert (view.kind, view.name, view.state, view.processes, view.facts["step"]) == (
        "trainer",
        "unet",
        "starting",
        (),
        0,
    )
    assert view.at - view.started == 10.0, "elapsed, too"


def test_before_it_has_begun_it_shows_what_its_processes_wait_for() -> None:
    waits = EventView(at=1005.0, text="agent-1 (job 7) waits: Resources")
    view = trainer_view(replace(EMPTY, program=program(stage_process(0, "starting"), events=(waits,))))
    assert view.events == (waits,) and view.actions == ("stop",)
    assert [(one.name, one.state, one.group) for one in view.processes] == [("stages.0", "starting", "")]
    up = trainer_view(replace(EMPTY, program=program(stage_process(0), stage_process(1, "starting"))))
    assert [(one.doing, one.group) for one in up.processes] == [("", ""), ("", "")], "nobody knows yet which are spare"


def test_the_header_has_the_numbers_of_the_training() -> None:
    known = moment()
    assert known.measured is not None
    facts = trainer_view(known).facts
    assert facts["loss"] == 0.25 and facts["samples_per_s"] == 64.0 and facts["step"] == 9
    assert facts["step_time_s"] == known.measured.step_s and facts["restarts"] == 0
    assert str(facts["bottleneck"]).startswith("stage ") and str(facts["plan"]).startswith("2 stages on 2 workers")
    assert "goodput" not in facts, "it is not known before a step is done"


def test_processes_are_listed_by_stage_with_what_their_workers_do() -> None:
    first, second, spare, restarting = trainer_view(moment()).processes
    assert (first.name, first.group, first.doing, first.done) == ("stages.1", "stage 0", "step 7: at B0:3", 7)
    assert (first.silent_s, first.memory_bytes, first.doing_s) == (0.5, 7, 0.0)
    assert (second.name, second.group, second.silent_s) == ("stages.0", "stage 1", 3.0)
    assert (spare.name, spare.group) == ("stages.2", "spare") and "snapshots" in spare.doing
    assert (restarting.name, restarting.state, restarting.doing) == ("stages.3", "restarting", "")


def test_a_sample_of_a_process_before_it_is_not_shown_as_its_own() -> None:
    known = moment()
    worker = PlanWorker(0, 0)
    stale = TimedSample(replace(known.samples[worker].sample, pid=99), 49.5)
    first = trainer_view(replace(known, samples={**known.samples, worker: stale})).processes[0]
    assert (first.pid, first.doing, first.silent_s) == (101, "", 0.0)


def test_its_own_events_and_those_of_hosts_are_told_in_order() -> None:
    known = moment()
    assert known.history is not None
    known.history.death("the process of stage 1 was lost", "stages.0")
    events = EventView(at=900.0, kind="join", text="host n2"), EventView(at=1001.0, kind="death", text="stages.0 died")
    view = trainer_view(replace(known, program=program(stage_process(0), events=events)))
    assert [event.text for event in view.events] == ["host n2", "the process of stage 1 was lost"]
    assert view.last_failure == "the process of stage 1 was lost" and view.facts["restarts"] == 1
    assert view.process_actions == ("kill", "restart", "stack")


def test_a_replica_whose_actions_take_longer_than_those_of_the_others_is_a_straggler() -> None:
    def timed(worker: PlanWorker, *milliseconds: int) -> TimedSample:
        recorder, now = Recorder(worker), 0
        for length in milliseconds:
            recorder.record(Action(ActionKind.FORWARD, worker.group, micro_batch=0), now, now + length * 10**6)
            now += length * 10**6
        return TimedSample(WorkerSample(worker, record=recorder.take()), 0.0)

    slow, quick, other = PlanWorker(0, 0), PlanWorker(0, 1), PlanWorker(1, 0)
    samples = {slow: timed(slow, 20, 20, 20), quick: timed(quick, 10, 90, 10), other: timed(other, 99, 99)}
    assert stragglers(samples) == {slow}, "one slow action does not count, and stages differ"
    assert stragglers({slow: samples[slow]}) == frozenset()


def test_in_a_notebook_every_text_is_escaped() -> None:
    known = moment()
    assert known.history is not None
    known.history.death("<script>alert(1)</script>")
    shown = trainer_html(trainer_view(replace(known, name="<b>unet</b>")))
    assert "<script>" not in shown and "<b>unet" not in shown and "&lt;script&gt;" in shown
    assert ">0.25</td>" in shown and "stage 0" in shown


def test_progress_and_time_left_are_known_with_a_number_of_steps() -> None:
    assert (trainer_view(moment()).progress, trainer_view(moment()).left_s) == (None, None)
    view = trainer_view(replace(moment(), total_steps=36))
    assert (view.progress, view.left_s, view.facts["total_steps"]) == (0.25, 13.5, 36)
    assert trainer_view(replace(moment(), total_steps=36, rates=None)).left_s is None
    over = trainer_view(replace(moment(), total_steps=6))
    assert (over.progress, over.left_s) == (1.0, 0.0)
