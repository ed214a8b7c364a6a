"""The last step of a pipeline as data: measured, and planned or ideal."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ropewalk.pipeline.planning import plan as make_plan
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.topology import Level, Topology
from ropewalk.training.panels.pipeline import bubble_of, last_step, pipeline_panel
from ropewalk.training.worker_sample import WorkerSample
from tests.pipeline.simulation.equal_stages import Case, Times
from tests.training.panels.sampled import sampled
from tests.training.played_records import as_if_real


@pytest.mark.parametrize("name", ["one_f_one_b", "zb_v", "pipedream"])
def test_measured_actions_and_numbers_are_those_of_the_timeline(name: str) -> None:
    timeline, schedule, samples = sampled(name)
    measured = last_step(timeline.plan, schedule, samples, {})
    assert measured is not None
    data = json.loads(json.dumps(pipeline_panel(timeline.plan, schedule, measured, samples)))
    spans = [span for worker in measured.workers for span in measured.spans(worker) if span.end_s > span.start_s]
    assert [row[1:4] for row in data["measured"]] == [
        [span.action.kind.value, span.action.stage, span.action.micro_batch] for span in spans
    ]
    assert [row[4] for row in data["measured"]] == pytest.approx([span.start_s for span in spans], abs=1e-7)
    assert data["step_s"] == pytest.approx(measured.step_s) and data["step"] == 7
    assert data["bubble"] == pytest.approx(bubble_of(measured)) and data["idle"] == pytest.approx(measured.idle)
    assert data["planned_from"] == "measured", "this plan has no prediction"
    assert {tuple(row[1:4]) for row in data["planned"]} <= {
        (kind, stage, micro_batch)
        for kind in "FBIWU"
        for stage in range(len(timeline.plan.stages))
        for micro_batch in (None, *range(200))
    }


def test_a_step_that_went_as_planned_has_the_planned_numbers() -> None:
    case = Case(make_schedule("one_f_one_b"), 2, 4, Times(0.01, 0.015, 0.005))
    topology = Topology((Level(2, 1e12, 0.0),))
    plan = make_plan(case.profile(), devices=topology, schedule="one_f_one_b", micro_batches=4, num_stages=2)
    timeline, schedule, _ = sampled()
    records = as_if_real(replace(timeline, plan=plan), 2)
    samples = {worker: WorkerSample(worker, record=record) for worker, record in records.items()}
    measured = last_step(plan, schedule, samples, {})
    assert measured is not None
    data = pipeline_panel(plan, schedule, measured, samples)
    assert data["planned_from"] == "plan"
    assert data["planned_step_s"] == pytest.approx(0.15, rel=0.01), "5 slots of 10 + 20 ms"
    assert data["planned_bubble"] == pytest.approx(0.2, abs=0.01)
    assert data["bottleneck"]["computing"] == pytest.approx(1 - data["bubble"])


def test_before_all_workers_have_done_a_step_there_is_none() -> None:
    timeline, schedule, samples = sampled()
    worker = timeline.plan.workers[1]
    assert last_step(timeline.plan, schedule, {**samples, worker: WorkerSample(worker)}, {}) is None
    assert last_step(timeline.plan, schedule, {}, {}) is None


def test_waits_say_for_which_stage() -> None:
    timeline, schedule, samples = sampled()
    measured = last_step(timeline.plan, schedule, samples, {})
    assert measured is not None
    data = pipeline_panel(timeline.plan, schedule, measured, samples)
    first = [row for row in data["waits"] if row[0] == 0]
    assert {tuple(row[1:3]) for row in first} == {("starved", 1)}
    assert sum(row[4] - row[3] for row in first) == pytest.approx(
        sum(wait.end_s - wait.start_s for wait in measured.waits[timeline.plan.workers[0]]), abs=1e-6
    )
