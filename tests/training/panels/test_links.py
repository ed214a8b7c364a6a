from __future__ import annotations

from ropewalk.pipeline.planning import plan as make_plan
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.topology import Level, Topology
from ropewalk.training.panels.links import links_panel
from ropewalk.training.worker_sample import WorkerSample
from tests.pipeline.simulation.equal_stages import Case, Times


def test_bytes_of_a_step_stand_beside_the_planned_ones() -> None:
    case = Case(make_schedule("one_f_one_b"), 2, 4, Times(0.01, 0.015, 0.005))
    plan = make_plan(case.profile(), devices=Topology((Level(2, 1e9, 0.0),)), micro_batches=4, num_stages=2)
    first, second = plan.workers
    samples = {
        first: WorkerSample(first, num_steps=5, sent_bytes={second: 160}),
        second: WorkerSample(second, num_steps=0, sent_bytes={first: 0}),
    }
    assert links_panel(plan, samples) == {
        "links": {"0.0 -> 1.0": {"total_bytes": 160, "step_bytes": 32.0, "planned_step_bytes": 32.0}}
    }
