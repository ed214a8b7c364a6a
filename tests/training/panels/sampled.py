"""Samples of workers for tests of panels: those of simulated steps."""

from __future__ import annotations

from ropewalk.pipeline.plans import PlanWorker
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.simulation.timeline import Timeline
from ropewalk.training.worker_sample import StageSample, WorkerSample
from tests.training.played_records import as_if_real, simulated


def sampled(
    name: str = "one_f_one_b", num_groups: int = 2
) -> tuple[Timeline, Schedule, dict[PlanWorker, WorkerSample]]:
    """A simulated step, its schedule, and what workers say that have done two of them."""
    timeline = simulated(name, num_groups)
    records = as_if_real(timeline, 2 if timeline.flushes else 1)
    samples = {
        worker: WorkerSample(worker, step=7, num_steps=8, host="n1", record=record)
        for worker, record in records.items()
    }
    return timeline, make_schedule(name), samples


def stage_sample(stage: int, *versions: int) -> StageSample:
    """A stage that holds these versions of weights of 100 bytes, of which 80 are trained."""
    held = dict.fromkeys(versions[:-1], 1)
    return StageSample(stage, versions, held, len(versions), 4, 100, 80, 160, 10)
