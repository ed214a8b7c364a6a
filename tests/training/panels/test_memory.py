from __future__ import annotations

from dataclasses import replace

from ropewalk.pipeline.planning import plan as make_plan
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.topology import Level, Topology
from ropewalk.training.panels.memory import memory_panel
from ropewalk.training.worker_sample import WorkerSample
from tests.pipeline.simulation.equal_stages import Case, Times
from tests.training.panels.sampled import stage_sample


def test_what_stages_hold_stands_beside_the_plan_and_below_the_limit() -> None:
    case = Case(make_schedule("one_f_one_b"), 2, 4, Times(0.01, 0.015, 0.005))
    plan = make_plan(case.profile(), devices=Topology((Level(2, 1e9, 0.0),)), micro_batches=4, num_stages=2)
    assert plan.prediction is not None
    first, second = plan.workers
    on_cpu = WorkerSample(first, memory_bytes=5000, stages=(stage_sample(0, 3, 4, 5),))
    on_gpu = WorkerSample(
        second, device_bytes=700, peak_device_bytes=900, device_limit_bytes=10_000, stages=(stage_sample(1, 5),)
    )
    cpu, gpu = memory_panel(plan, {first: on_cpu, second: on_gpu})["workers"]
    assert cpu["held"] == {"weights": 100, "optimizer": 160, "stashed": 160, "buffers": 10}
    assert (cpu["device"], cpu["process_bytes"], cpu["peak_device_bytes"]) == ("cpu", 5000, None)
    assert sum(cpu["planned"].values()) == plan.prediction.stages[0].memory.total
    assert cpu["limit_bytes"] == plan.prediction.memory_bytes
    assert (gpu["device"], gpu["peak_device_bytes"], gpu["limit_bytes"]) == ("gpu", 900, 10_000)
    assert memory_panel(replace(plan, prediction=None), {first: on_cpu})["workers"][0]["planned"] is None
