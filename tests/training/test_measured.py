from __future__ import annotations

import itertools
import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from ropewalk.pipeline import local_executor, planning
from ropewalk.pipeline.actions import ActionKind
from ropewalk.pipeline.plans import PlanWorker, Tie
from ropewalk.pipeline.schedules import SCHEDULES, make_schedule
from ropewalk.pipeline.simulation.simulator import simulate
from ropewalk.pipeline.simulation.spans import COMPUTING
from ropewalk.pipeline.topology import Level, Topology
from ropewalk.training.measured import MeasuredTimeline, measured_timeline
from ropewalk.training.planned_and_measured import (
    comparable,
    ideal_timeline,
    planned_and_measured_svg,
    planned_and_measured_trace,
    planned_timeline,
)
from ropewalk.training.recorder import Recorder, records_of
from tests.pipeline.simulation.equal_stages import Case, Times
from tests.training.played_records import BOOT_NS, as_if_real, player_of, simulated, train

SVG = "{http://www.w3.org/2000/svg}"
FLUSHING = [name for name, schedule in SCHEDULES.items() if schedule.flushes]
ENDLESS = [name for name, schedule in SCHEDULES.items() if not schedule.flushes]


def measured_as(name: str, num_steps: int = 3, shown: int = 1, **options: Any) -> MeasuredTimeline:
    timeline = simulated(name, **options)
    return measured_timeline(timeline.plan, name, as_if_real(timeline, num_steps), num_steps=shown)


# --- the same numbers as of a simulation ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLUSHING)
def test_the_last_step_of_a_run_has_the_numbers_of_the_simulation_that_it_repeats(name: str) -> None:
    timeline = simulated(name, micro_batches=4)
    measured = measured_timeline(timeline.plan, name, as_if_real(timeline, 3))
    assert measured.num_steps == 1
    for worker in timeline.workers:
        assert [str(action).split("v")[0] for action in measured.actions[worker]] == [
            str(action).split("v")[0] for action in timeline.actions[worker]
        ]
        assert measured.starts[worker] == pytest.approx(timeline.starts[worker], abs=1e-7)
        assert measured.ends[worker] == pytest.approx(timeline.ends[worker], abs=1e-7)
        assert measured.compute_s[worker] == pytest.approx(timeline.compute_s[worker], abs=1e-6)
    assert measured.step_s == pytest.approx(timeline.step_s, abs=1e-6)
    assert measured.bubble_s == pytest.approx(timeline.bubble_s, abs=1e-6)
    assert measured.idle == pytest.approx(timeline.idle, abs=1e-5)


@pytest.mark.parametrize("shown", [2, 3, 7])
def test_of_several_steps_the_numbers_are_those_of_one(shown: int) -> None:
    timeline = simulated("one_f_one_b", 3)
    measured = measured_timeline(timeline.plan, "one_f_one_b", as_if_real(timeline, 3), num_steps=shown)
    assert measured.num_steps == min(shown, 3)
    assert measured.step_s == pytest.approx(timeline.step_s, abs=1e-6)
    assert measured.bubble_s == pytest.approx(timeline.bubble_s, abs=1e-6)


@pytest.mark.parametrize("name", ENDLESS)
def test_without_a_flush_the_rate_is_that_of_a_full_pipeline(name: str) -> None:
    timeline = simulated(name, 3, micro_batches=60)
    plan = replace(timeline.plan, micro_batches=6)
    measured = measured_timeline(plan, name, as_if_real(timeline), num_steps=2)
    assert measured.num_steps == 2
    first = measured.actions[plan.workers[0]]
    assert 12 <= sum(action.kind is ActionKind.FORWARD for action in first) <= 16
    ended = [action.micro_batch or 0 for action in first if action.kind is ActionKind.BACKWARD]
    assert max(ended) < 59, "the drain is left out"
    whole = comparable(timeline, measured)
    assert whole.step_s == pytest.approx(timeline.step_s / 10, rel=0.02)
    assert abs(len(whole.actions[plan.workers[0]]) - len(first)) <= 4
    assert measured.step_s == pytest.approx(timeline.step_s / 10, rel=0.02)


def test_clocks_are_set_to_one_another() -> None:
    timeline = simulated("gpipe", 3)
    offsets = {PlanWorker(1, 0): 10**13, PlanWorker(2, 0): -12345}
    plain = measured_timeline(timeline.plan, "gpipe", as_if_real(timeline, 2))
    moved = measured_timeline(timeline.plan, "gpipe", as_if_real(timeline, 2, offsets), offsets)
    for worker in timeline.workers:
        assert moved.starts[worker] == plain.starts[worker]
        assert moved.waits[worker] == plain.waits[worker]
    wrong = measured_timeline(timeline.plan, "gpipe", as_if_real(timeline, 2, offsets))
    assert wrong.length_s > 1000


def test_a_step_whose_beginning_was_forgotten_is_left_out() -> None:
    timeline = simulated("one_f_one_b")
    num = min(map(len, timeline.actions.values()))
    records = as_if_real(timeline, 4, capacity=2 * num + num // 2)
    measured = measured_timeline(timeline.plan, "one_f_one_b", records, num_steps=4)
    assert measured.num_steps == 2
    records = as_if_real(timeline, 4, capacity=num // 2)
    with pytest.raises(ValueError, match="no step that all workers have done"):
        measured_timeline(timeline.plan, "one_f_one_b", records)


def test_a_step_that_some_have_not_ended_is_left_out() -> None:
    timeline = simulated("one_f_one_b")
    records = as_if_real(timeline, 3)
    worker = timeline.workers[1]
    record = records[worker]
    cut = replace(
        record,
        actions=record.actions[:-1],
        start_ns=record.start_ns[:-1],
        end_ns=record.end_ns[:-1],
        waited_ns=record.waited_ns[:-1],
    )
    measured = measured_timeline(timeline.plan, "one_f_one_b", {**records, worker: cut})
    steps = [action for actions in measured.actions.values() for action in actions if action.kind is ActionKind.STEP]
    assert {action.version for action in steps} == {2}


def test_without_records_it_is_said_whose_are_missing() -> None:
    timeline = simulated("one_f_one_b")
    records = as_if_real(timeline)
    records[PlanWorker(1, 0)] = Recorder(PlanWorker(1, 0)).take()
    with pytest.raises(ValueError, match=r"no record of worker 1\.0"):
        measured_timeline(timeline.plan, "one_f_one_b", records)


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_waits_fill_the_gaps_between_actions_and_say_whom_for() -> None:
    measured = measured_as("one_f_one_b", num_groups=3)
    for worker in measured.workers:
        gaps = [
            (end, start)
            for end, start in zip([0.0, *measured.ends[worker]], measured.starts[worker], strict=False)
            if start - end > 1e-6
        ]
        waits = measured.waits[worker]
        assert [wait.start_s for wait in waits] == pytest.approx([start for start, _ in gaps], abs=1e-6)
        assert [wait.end_s for wait in waits] == pytest.approx([end for _, end in gaps], abs=1e-6)
        assert {wait.cause for wait in waits} == {"starved"}
        assert {wait.stage for wait in waits} <= {worker.group - 1, worker.group + 1}


def test_a_wait_that_began_before_the_picture_is_cut_off_there() -> None:
    timeline = simulated("gpipe")
    recorders = {worker: Recorder(worker) for worker in timeline.workers}
    for worker, recorder in recorders.items():
        for number, (_, action, start_s, end_s) in enumerate(timeline.spans(worker)):
            waited_ns = 10**12 if number == 0 else 0
            recorder.record(action, BOOT_NS + round(start_s * 1e9), BOOT_NS + round(end_s * 1e9), waited_ns)
    measured = measured_timeline(
        timeline.plan, "gpipe", {worker: recorder.take() for worker, recorder in recorders.items()}
    )
    assert measured.waits[PlanWorker(0, 0)] == []
    (wait,) = measured.waits[PlanWorker(1, 0)]
    assert wait.start_s == 0 and wait.end_s == measured.starts[PlanWorker(1, 0)][0]


# --- what the times would allow ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_ideal_of_a_run_without_overhead_is_that_run(name: str) -> None:
    timeline = simulated(name, 2, micro_batches=60 if name in ENDLESS else 4, latency_s=0.0, bandwidth=float("inf"))
    plan = replace(timeline.plan, micro_batches=6) if name in ENDLESS else timeline.plan
    measured = measured_timeline(plan, name, as_if_real(timeline))
    ideal = ideal_timeline(plan, name, measured)
    assert ideal.step_s == pytest.approx(measured.step_s, rel=1e-3)


def test_the_ideal_has_no_transfers_and_no_slow_micro_batches() -> None:
    measured = measured_as("one_f_one_b", num_groups=3, micro_batches=6)
    ideal = ideal_timeline(measured.plan, "one_f_one_b", measured)
    # (m + p - 1) (t_F + t_B): transfers aside
    assert ideal.step_s == pytest.approx(8 * 0.03, rel=1e-4) and measured.step_s > ideal.step_s


@pytest.mark.parametrize("name", ["gpipe", "zb_h1"])
def test_weights_that_stages_share_are_drawn_as_sums_that_take_no_time(name: str) -> None:
    # The page, `ropewalk top`, view() and timeline() of a trainer with a tied embedding raised KeyError.
    timeline = simulated(name, 2, micro_batches=4, latency_s=0.0, bandwidth=float("inf"))
    measured = measured_timeline(timeline.plan, name, as_if_real(timeline))
    tied = replace(timeline.plan, tied=(Tie("embedding.weight", (0, 1)),))
    assert ideal_timeline(tied, name, measured).step_s == pytest.approx(measured.step_s, rel=1e-3)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_player_is_drawn_with_all_it_did(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = itertools.count()  # at a clock that other programs do not make uneven
    monkeypatch.setattr(local_executor, "time", SimpleNamespace(perf_counter=lambda: next(looks) / 1000))
    player = player_of(name)
    train(player, 2)
    measured = measured_timeline(player.plan, name, records_of(player.recorded))
    assert measured.text().count("\n") == len(measured.workers) + 2
    assert ideal_timeline(player.plan, name, measured).step_s < measured.step_s


def test_updates_of_2bw_are_part_of_the_ideal() -> None:
    # One long mini-batch stood for many, with its only update at the end.
    case = Case(make_schedule("pipedream_2bw"), 2, 6, Times(0.01, 0.015, 0.005))
    plan, topology = case.plan(), Topology((Level(2),))
    actions = case.schedule.actions(plan, num_micro_batches=90)
    timeline = simulate(
        plan, case.profile(), topology, actions, schedule=case.schedule, update_s=dict.fromkeys((0, 1), 0.05)
    )
    measured = measured_timeline(plan, "pipedream_2bw", as_if_real(timeline), num_steps=8)
    ideal = ideal_timeline(plan, "pipedream_2bw", measured)
    assert ideal.step_s == pytest.approx(measured.step_s, rel=0.05)
    assert any(action.kind is ActionKind.STEP for own in ideal.actions.values() for action in own)


@pytest.mark.parametrize("name", ["gpipe", "zb_h1"])
def test_the_plan_of_stages_that_recompute_has_their_second_forward_once(name: str) -> None:
    # It was part of the predicted backward, and an action of its own besides.
    case = Case(make_schedule(name), 2, 4, Times(0.01, 0.01, 0.01))
    topology = Topology((Level(2),))
    made = planning.plan(case.profile(), devices=topology, num_stages=2, micro_batches=4, schedule=name, recompute=True)
    measured = measured_timeline(made, name, as_if_real(simulate(made, case.profile(), topology, schedule=name)))
    planned = planned_timeline(made, name, measured)
    assert planned is not None and made.prediction is not None
    assert planned.step_s == pytest.approx(measured.step_s, rel=1e-6)
    assert planned.step_s == pytest.approx(made.prediction.step_s, rel=1e-6)


# --- pictures and traces ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["one_f_one_b", "zb_v", "pipedream"])
def test_the_picture_has_planned_and_measured_rows_on_one_scale(name: str) -> None:
    measured = measured_as(name, num_steps=1 if name in ENDLESS else 3, micro_batches=8)
    planned = simulated(name, micro_batches=48 if name in ENDLESS else 8)
    root = ElementTree.fromstring(planned_and_measured_svg(planned, measured))
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    shown = comparable(planned, measured)
    computed = [
        f"{span.action}: "
        for timeline in (shown, measured)
        for worker in timeline.workers
        for span in timeline.spans(worker)
        if span.action.kind in COMPUTING
    ]
    for action in set(computed):
        assert sum(title.startswith(action) for title in titles) == computed.count(action)
    assert sum(title.startswith("waited: starved, stage ") for title in titles) == sum(
        map(len, measured.waits.values())
    )
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts.count("planned") == texts.count("measured") == len(measured.workers)
    assert any((text or "").startswith("planned: step ") for text in texts)
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    for box in root.iter(f"{SVG}rect"):
        if box.attrib["width"] != "100%":
            assert 0 <= float(box.attrib["x"]) <= float(box.attrib["x"]) + float(box.attrib["width"]) <= width
            assert 0 <= float(box.attrib["y"]) + float(box.attrib["height"]) <= height
    assert "href" not in planned_and_measured_svg(planned, measured)


def test_a_picture_of_what_was_measured_alone_has_one_row_each() -> None:
    measured = measured_as("one_f_one_b", num_groups=3)
    texts = [text.text for text in ElementTree.fromstring(measured.svg()).iter(f"{SVG}text")]
    assert "planned" not in texts and texts.count("measured") == 3
    assert "and 1 more workers" in measured.svg(max_workers=2)


def test_what_is_not_the_plan_is_not_called_so() -> None:
    measured = measured_as("one_f_one_b")
    ideal = ideal_timeline(measured.plan, "one_f_one_b", measured)
    assert "planned" not in planned_and_measured_svg(ideal, measured, called="ideal")
    assert b"planned" not in planned_and_measured_trace(ideal, measured, called="ideal")
    assert b'"ideal device 0: ' in planned_and_measured_trace(ideal, measured, called="ideal")


def test_names_of_a_model_cannot_break_the_picture() -> None:
    timeline = simulated("gpipe")
    edge = replace(timeline.plan.edges[0], tensor='<a & "b">')
    plan = replace(timeline.plan, edges=(edge,))
    records = {
        worker: replace(record, actions=tuple(replace(a, edge=a.edge and edge.tensor) for a in record.actions))
        for worker, record in as_if_real(timeline).items()
    }
    for worker, record in records.items():  # sends take time, or they are not drawn
        for place in range(len(record)):
            record.end_ns[place] += 1000
        records[worker] = record
    titles = [
        title.text or ""
        for title in ElementTree.fromstring(measured_timeline(plan, "gpipe", records).svg()).iter(f"{SVG}title")
    ]
    assert any('<a & "b">: send' in title for title in titles)


@pytest.mark.parametrize("name", ["one_f_one_b", "zb_v", "pipedream"])
def test_the_trace_has_processes_for_the_plan_and_for_what_happened(name: str, tmp_path: Path) -> None:
    measured = measured_as(name, num_steps=1 if name in ENDLESS else 3, micro_batches=8)
    planned = simulated(name, micro_batches=48 if name in ENDLESS else 8)
    (tmp_path / "trace.json").write_bytes(planned_and_measured_trace(planned, measured))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    by_phase: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        by_phase[event["ph"]].append(event)
    names = {event["pid"]: event["args"]["name"] for event in by_phase["M"] if event["name"] == "process_name"}
    orders = {event["pid"]: event["args"]["sort_index"] for event in by_phase["M"] if event["name"].endswith("index")}
    assert [names[pid].split(":")[0] for pid in sorted(names, key=lambda pid: orders[pid])] == [
        "planned device 0",
        "device 0",
        "planned device 1",
        "device 1",
    ]
    rows: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in by_phase["X"]:
        rows[event["pid"], event["tid"]].append(event)
    threads = {(event["pid"], event["tid"]) for event in by_phase["M"] if event["name"] == "thread_name"}
    assert set(rows) <= threads
    for row in rows.values():
        row.sort(key=lambda event: event["ts"])
        assert all(one["ts"] + one["dur"] <= two["ts"] + 1e-6 for one, two in pairwise(row))
    waits = [event for event in by_phase["X"] if event["cat"] == "wait"]
    assert len(waits) == sum(map(len, measured.waits.values())) > 0
    assert all(event["name"].startswith("starved, stage ") for event in waits)
    assert {names[event["pid"]].split()[0] for event in waits} == {"device"}


def test_arrows_lead_from_each_send_to_its_receive() -> None:
    measured = measured_as("one_f_one_b", num_groups=3)
    events = json.loads(measured.trace())["traceEvents"]
    begins = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    num_sent = sum(action.kind is ActionKind.SEND for actions in measured.actions.values() for action in actions)
    assert begins.keys() == ends.keys() and len(begins) == num_sent
    for id, begin in begins.items():
        assert begin["ts"] <= ends[id]["ts"] and abs(begin["pid"] - ends[id]["pid"]) == 1
