from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ropewalk.exchange.exchange import ExchangeReport
from ropewalk.pipeline.planning import plan
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.simulation.simulator import simulate
from ropewalk.pipeline.simulation.timeline import Timeline
from ropewalk.pipeline.topology import Level, Topology
from ropewalk.training.counters import WorkerCounters
from ropewalk.training.recorder import Recorder, records_of
from ropewalk.training.report import TrainingReport
from tests.pipeline.simulation.equal_stages import Case, Times
from tests.training.played_records import BOOT_NS, as_if_real, player_of, simulated, train


def planned(schedule: str = "one_f_one_b") -> tuple[Plan, Timeline]:
    """A plan with a prediction, and one step of it in the simulator."""
    case = Case(make_schedule(schedule), 2, 4, Times(0.01, 0.015, 0.005))
    topology = Topology((Level(2, 8 / 0.001, 0.0005),))
    made = plan(case.profile(), devices=topology, schedule=schedule, micro_batches=4, num_stages=2)
    return made, simulate(made, case.profile(), topology)


def test_a_run_that_went_as_planned_is_reported_so() -> None:
    made, timeline = planned()
    assert made.prediction is not None
    report = TrainingReport.of(made, made.prediction, as_if_real(timeline, 5), {}, samples_per_micro_batch=8)
    assert (report.num_steps, report.num_steps_of_run) == (5, 5)
    assert report.step_s == pytest.approx(report.predicted_step_s, abs=1e-6)
    assert report.idle == pytest.approx(report.predicted_idle, abs=1e-5)
    assert report.samples_per_s == pytest.approx(32 / report.step_s)
    assert report.bubble == pytest.approx(timeline.bubble_s / timeline.range_s, abs=1e-5)
    assert report.ideal_step_s == pytest.approx(0.15) and report.step_s > report.ideal_step_s
    for stage in report.stages:
        assert stage.forward_s == pytest.approx(stage.predicted_forward_s, abs=1e-7)
        assert stage.backward_s == pytest.approx(stage.predicted_backward_s, abs=1e-7)
    assert "(0.0 % longer)" in str(report) or "(0.0 % shorter)" in str(report)


@pytest.mark.parametrize(
    ("ratio", "words"), [(0.9, "10.0 % shorter"), (1.25, "25.0 % longer"), (11.86, "11.9 times as long")]
)
def test_a_run_that_did_not_go_as_planned_says_by_how_much(ratio: float, words: str) -> None:
    made, timeline = planned()
    report = TrainingReport.of(made, made.prediction, as_if_real(timeline, 5), {}, samples_per_micro_batch=8)
    report = replace(report, predicted_step_s=report.step_s / ratio)
    assert f"planned ({words})" in str(report)


@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b", "zb_v", "pipedream"])
def test_the_shares_of_a_worker_add_up_and_say_whom_it_waited_for(name: str) -> None:
    timeline = simulated(name, 3, micro_batches=8)
    num_steps = 3 if timeline.flushes else 1
    report = TrainingReport.of(timeline.plan, None, as_if_real(timeline, num_steps), {})
    for worker in report.workers:
        spent = worker.computing + worker.passing + worker.updating + sum(worker.waiting.values()) + worker.other
        assert spent == pytest.approx(1, abs=1e-6)
        assert worker.other < 0.03
        assert worker.computing == pytest.approx(1 - worker.idle, abs=1e-6), "links and updates take workers no time"
        group = PlanWorker(int(worker.worker[0]), 0).group
        near = {stage for stage in range(len(timeline.plan.stages)) if abs(timeline.plan.placement[stage] - group) <= 1}
        whom = {int(why.rsplit(" ", 1)[1]) for why in worker.waiting if why.startswith("starved by stage ")}
        assert whom and whom <= near


def test_waiting_for_the_controller_for_sums_and_for_room_is_told_apart() -> None:
    timeline = simulated("one_f_one_b", 2, micro_batches=1)
    records = as_if_real(timeline)
    recorder, now = Recorder(PlanWorker(0, 0)), BOOT_NS
    milliseconds = {"F": 2, "S": 3, "R": 4, "B": 0, "U": 5}
    for action in timeline.actions[PlanWorker(0, 0)]:
        waited_ns = 1_000_000 * milliseconds[action.kind.value]
        now += waited_ns
        recorder.record(action, now, now + 500_000, waited_ns)
        now += 500_000
    records[PlanWorker(0, 0)] = recorder.take()
    records[PlanWorker(1, 0)].start_ns[0] = BOOT_NS  # so that the time begins before the first action of the other
    report = TrainingReport.of(timeline.plan, None, records, {})
    waiting = dict(report.workers[0].waiting)
    del waiting["others to end"]
    ms = 1e-3 / report.step_s
    assert waiting == pytest.approx(
        {"sums": 5 * ms, "starved by stage 1": 4 * ms, "back-pressure of stage 1": 3 * ms, "admission": 2 * ms}
    )


def test_one_slow_step_does_not_count() -> None:
    timeline = simulated("one_f_one_b")
    records = as_if_real(timeline, 9)
    usual = TrainingReport.of(timeline.plan, None, records, {}).step_s
    for record in records.values():
        for place in range(len(record)):
            if place > 3 * len(timeline.actions[record.worker]):
                record.start_ns[place] += 10**10
                record.end_ns[place] += 10**10
    report = TrainingReport.of(timeline.plan, None, records, {})
    assert report.step_s == pytest.approx(usual)


@pytest.mark.parametrize("name", ["one_f_one_b", "pipedream"])
def test_steps_that_the_ring_has_forgotten_are_counted(name: str) -> None:
    timeline = simulated(name, 2, micro_batches=64 if name == "pipedream" else 4)
    made = replace(timeline.plan, micro_batches=4)
    num_steps = 1 if name == "pipedream" else 16
    whole = as_if_real(timeline, num_steps)
    cut = as_if_real(timeline, num_steps, capacity=len(whole[PlanWorker(0, 0)]) // 2)
    assert cut[PlanWorker(0, 0)].num_forgotten
    for records in (whole, cut):
        report = TrainingReport.of(made, None, records, {}, schedule=name)
        assert report.num_steps_of_run == pytest.approx(16, rel=0.05)
    assert 5 <= report.num_steps <= 8


def test_bytes_of_links_are_held_against_the_plan() -> None:
    made, timeline = planned()
    first, second = made.workers
    counters = {
        first: WorkerCounters(first, sent_bytes={second: 160}),
        second: WorkerCounters(second, sent_bytes={first: 80}),
    }
    report = TrainingReport.of(made, made.prediction, as_if_real(timeline, 5), counters)
    there, back = report.links
    assert (there.source, there.target, there.total_bytes, there.step_bytes) == ("0.0", "1.0", 160, 32)
    assert there.predicted_step_bytes == 32 and back.predicted_step_bytes == 32 and back.step_bytes == 16


def test_a_person_can_read_it() -> None:
    made, timeline = planned()
    first, second = made.workers
    counters = {
        first: WorkerCounters(
            first,
            host="n1",
            pid=12,
            sent_bytes={second: 15 << 20},
            versions_held={0: 2},
            num_updates={0: 10},
            num_copies={0: 5},
            peak_memory_bytes=300 << 20,
            num_snapshots=4,
            snapshot_s=0.01,
        ),
        second: WorkerCounters(
            second,
            peak_memory_bytes=310 << 20,
            peak_device_bytes=5 << 20,
            exchange=ExchangeReport(steps=5, sent_bytes=5 << 20, header_bytes=5 << 10, dense_bytes=20 << 20),
            notes=("step 3 was slow",),
        ),
    }
    report = TrainingReport.of(made, made.prediction, as_if_real(timeline, 5), counters, samples_per_micro_batch=8)
    assert str(report).splitlines() == [
        "one_f_one_b on 2 workers, 4 micro-batches in a step; all 5 steps",
        "",
        "worker  stages  computing  passing  updating  waiting  other  process  tensors   planned  copies",
        "0.0     0            77 %      0 %       0 %     23 %    0 %  300 MiB        -  1.99 KiB     0.5",
        "1.0     1            77 %      0 %       0 %     23 %    0 %  310 MiB    5 MiB  1.02 KiB       0",
        "",
        "stage  forward  planned  backward  planned  versions",
        "    0    10 ms    10 ms     20 ms    20 ms         2",
        "    1    10 ms    10 ms     20 ms    20 ms         -",
        "",
        "memory      the whole process at its peak, with Python and torch; tensors at their peak, measured on the "
        "accelerator and planned",
        "step        156 ms, 156 ms planned (0.0 % longer), 150 ms possible with these times; 205.1 samples/s",
        "bubble      23 % of the time the busiest worker does not compute; workers are 23 % idle, 23 % planned",
        "waiting     worker 0.0: starved by stage 1 23 %",
        "waiting     worker 1.0: starved by stage 0 20 %, others to end 3 %",
        "link        worker 0.0 -> 1.0: 3 MiB in a step besides the exchange, 0.0312 KiB planned; 15 MiB in all",
        "snapshots   worker 0.0: 4, which took 1.3 % of its time",
        "exchange    worker 1.0: 1 MiB sent in a step, 25 % of a dense ring all-reduce, "
        "and 1 KiB of headers; 5 MiB in all",
        "note        worker 1.0: step 3 was slow",
    ]


def test_a_machine_can_read_it() -> None:
    made, timeline = planned()
    worker = made.workers[0]
    counters = {worker: WorkerCounters(worker, exchange=ExchangeReport(steps=2), versions_held={0: 3})}
    report = TrainingReport.of(made, made.prediction, as_if_real(timeline, 2), counters)
    read = json.loads(report.to_json())
    assert read["step_s"] == report.step_s and read["workers"][0]["waiting"] == report.workers[0].waiting
    assert read["workers"][0]["exchange"]["steps"] == 2 and read["stages"][0]["versions_held"] == 3


@pytest.mark.parametrize("name", ["one_f_one_b", "pipedream"])
def test_of_a_player_it_says_that_workers_took_turns(name: str) -> None:
    player = player_of(name)
    train(player, 5)
    report = TrainingReport.of(player.plan, None, records_of(player.recorded), {}, schedule=name)
    assert report.num_steps_of_run == 5 and "took turns in one thread" in str(report)
    assert sum(worker.computing for worker in report.workers) < 1


def test_before_the_first_step_there_is_nothing_to_report() -> None:
    made, _ = planned()
    with pytest.raises(ValueError, match=r"no record of worker 0\.0"):
        TrainingReport.of(made, made.prediction, {}, {})
