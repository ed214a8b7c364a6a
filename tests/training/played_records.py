"""Records for tests: of a local executor, and of the simulator as if it had been real."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from ropewalk.pipeline.local_executor import LocalExecutor
from ropewalk.pipeline.plans import PlanWorker
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.simulation.simulator import simulate
from ropewalk.pipeline.simulation.timeline import Timeline
from ropewalk.pipeline.topology import Level, Topology
from ropewalk.pipeline.tracing.tracer import trace
from ropewalk.training.recorder import Recorder, WorkerRecord
from tests.pipeline.played_plans import even_cut, plan_of
from tests.pipeline.simulation.equal_stages import Case, Times

#: Where clocks that count from some boot of a machine may stand.
BOOT_NS = 5_000_000_000_000


def player_of(schedule: str, num_groups: int = 2, replicas: int = 1, micro_batches: int = 4) -> LocalExecutor:
    """A small model in one stage for each group of devices, or two where the schedule wants it."""
    torch.manual_seed(0)
    each = make_schedule(schedule).stages_per_worker
    num_stages = num_groups * each
    layers = [layer for _ in range(num_stages) for layer in (nn.Linear(4, 4), nn.Tanh())]
    graph = trace(nn.Sequential(*layers), (torch.randn(4, 4),))
    devices = [make_schedule(schedule).group_of(stage, num_groups) for stage in range(num_stages)]
    cut = even_cut(graph, num_stages)
    plan = plan_of(graph, cut, schedule=schedule, micro_batches=micro_batches, replicas=replicas, devices=devices)
    return LocalExecutor(graph, functional.mse_loss, lambda parameters: torch.optim.SGD(parameters, 0.1), plan)


def train(player: LocalExecutor, num_steps: int, num_samples: int = 8) -> None:
    for _ in range(num_steps):
        player.step(torch.randn(num_samples, 4), torch.randn(num_samples, 4))
    player.drain()


def simulated(
    schedule: str,
    num_groups: int = 2,
    micro_batches: int = 4,
    *,
    bandwidth: float = 8 / 0.001,
    latency_s: float = 0.0005,
) -> Timeline:
    """A timeline in hundredths of seconds, with links on which a tensor takes a millisecond."""
    case = Case(
        make_schedule(schedule),
        num_groups,
        micro_batches,
        Times(0.01, 0.01, 0.01) if schedule == "zb_v" else Times(0.01, 0.015, 0.005),
    )
    topology = Topology((Level(num_groups, bandwidth, latency_s),))
    return simulate(case.plan(), case.profile(), topology, schedule=case.schedule)


def as_if_real(
    timeline: Timeline, num_steps: int = 1, offsets: dict[PlanWorker, int] | None = None, capacity: int = 1 << 16
) -> dict[PlanWorker, WorkerRecord]:
    """What the workers would have recorded had a simulated step happened several times, one right after another."""
    records: dict[PlanWorker, WorkerRecord] = {}
    for worker in timeline.workers:
        recorder = Recorder(worker, capacity)
        before_ns = 0
        for step in range(num_steps):
            begins_ns = BOOT_NS + round(timeline.length_s * step * 1e9) - (offsets or {}).get(worker, 0)
            before_ns = before_ns or begins_ns
            for _, action, start_s, end_s in timeline.spans(worker):
                later = action
                if action.version is not None and step:
                    later = type(action).parse(str(action), action.replica)
                    object.__setattr__(later, "version", action.version + step)
                start_ns, end_ns = begins_ns + round(start_s * 1e9), begins_ns + round(end_s * 1e9)
                recorder.record(later, start_ns, end_ns, start_ns - before_ns)
                before_ns = end_ns
        records[worker] = recorder.take()
    return records
