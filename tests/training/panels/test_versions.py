from __future__ import annotations

from ropewalk.training.panels.versions import versions_panel
from ropewalk.training.worker_sample import WorkerSample
from tests.training.panels.sampled import sampled, stage_sample


def test_stages_are_listed_with_the_versions_that_micro_batches_hold() -> None:
    timeline, schedule, _ = sampled("pipedream")
    first, second = timeline.plan.workers
    samples = {
        second: WorkerSample(second, stages=(stage_sample(1, 9),)),
        first: WorkerSample(first, stages=(stage_sample(0, 7, 8, 9),)),
    }
    data = versions_panel(timeline.plan, schedule, samples)
    assert data["schedule"] == "pipedream"
    early, late = data["stages"]
    assert (early["stage"], early["worker"], early["versions"], early["held"]) == (
        0,
        "0.0",
        [7, 8, 9],
        {"7": 1, "8": 1},
    )
    assert (early["slots"], early["most"], early["stashed_bytes"]) == (4, 3, 160)
    assert (late["stage"], late["versions"], late["stashed_bytes"]) == (1, [9], 0)
