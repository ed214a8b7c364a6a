"""`WorkerSample`: what a stage worker tells of itself while it trains, without a drain, to those who look.

    launcher ── sample(num_steps, ...) ──▶ stage process, in a thread of calls: the main thread goes on computing
             ◀── WorkerSample ──────────── step, memory, versions, bytes; the newest actions, if they are wanted

Nothing is recorded for it: the recorder is always on, and everything else is read when it is asked for. So a trainer at
which nobody looks pays nothing.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ropewalk.exchange.exchange import ExchangeReport
from ropewalk.pipeline.plans import PlanWorker
from ropewalk.pipeline.stages.running_stage import RunningStage
from ropewalk.training.recorder import WorkerRecord

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class StageSample:
    """One stage on one worker, at one moment."""

    stage: int
    versions: tuple[int, ...]
    """The versions of its weights that exist, oldest first."""
    held: Mapping[int, int]
    """By version, the number of micro-batches between their forward and the end of their backward."""
    most_versions: int
    """The largest number of versions at once so far, and the number that there is memory for."""
    slots: int
    weight_bytes: int
    """Bytes of one version of the weights, of that which a further version takes, of the optimizer's state, and of the
    buffers."""
    version_bytes: int
    optimizer_bytes: int
    buffer_bytes: int

    @property
    def stashed_bytes(self) -> int:
        """Bytes of all versions but the newest."""
        return (len(self.versions) - 1) * self.version_bytes


@dataclass(frozen=True, slots=True)
class WorkerSample:
    """One worker at one moment."""

    worker: PlanWorker
    epoch: int = 0
    """Counts deployments of a plan; samples of different epochs do not belong together."""
    step: int = -1
    """The step of the run that it works on, from 0; -1 before the first."""
    num_steps: int = 0
    """The number of steps that it has begun since the plan was deployed."""
    doing: str = ""
    doing_s: float = 0.0
    """What it does or waits for, and the seconds since its last action ended."""
    host: str = ""
    pid: int = 0
    memory_bytes: int = 0
    """Resident memory of the process, and CPU seconds that it has used."""
    cpu_s: float = 0.0
    device_bytes: int | None = None
    """Memory of tensors on an accelerator, its peak, and the memory of the accelerator; None: there is none."""
    peak_device_bytes: int | None = None
    device_limit_bytes: int | None = None
    sent_bytes: Mapping[PlanWorker, int] = field(default_factory=dict[PlanWorker, int])
    """Bytes sent over each link since the plan was deployed, by the worker at the other end."""
    stages: tuple[StageSample, ...] = ()
    exchanges: Mapping[int, ExchangeReport] = field(default_factory=dict[int, ExchangeReport])
    """By stage, the costs of averaging between replicas; empty: no exchange does it, or it was not asked for."""
    record: WorkerRecord | None = None
    """The newest actions; None: they were not asked for."""


def stage_sample(stage: RunningStage) -> StageSample:
    """Sample a stage, in any thread."""
    versions = stage.versions
    return StageSample(
        stage.setup.id,
        versions.versions,
        Counter(flight.version for flight in list(stage.in_flight.values())),
        versions.most_versions,
        versions.num_slots,
        versions.weight_bytes,
        versions.version_bytes,
        _optimizer_bytes(versions.optimizer),
        _size_bytes(stage.buffers.values()),
    )


def worker_sample(
    worker: PlanWorker,
    stages: Collection[RunningStage],
    *,
    epoch: int,
    step: int,
    num_steps: int,
    doing: str = "",
    doing_s: float = 0.0,
    sent_bytes: Mapping[PlanWorker, int] | None = None,
    exchanges: Mapping[int, ExchangeReport] | None = None,
    record: WorkerRecord | None = None,
) -> WorkerSample:
    """Sample a worker and this process, in any thread."""
    device = next((stage.device for stage in stages), torch.device("cpu"))
    on_gpu = device.type == "cuda"
    return WorkerSample(
        worker,
        epoch,
        step,
        num_steps,
        doing,
        doing_s,
        os.uname().nodename,
        os.getpid(),
        resident_bytes(),
        time.process_time(),
        torch.cuda.memory_allocated(device) if on_gpu else None,
        torch.cuda.max_memory_allocated(device) if on_gpu else None,
        torch.cuda.mem_get_info(device)[1] if on_gpu else None,
        sent_bytes or {},
        tuple(stage_sample(stage) for stage in stages),
        exchanges or {},
        record,
    )


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def _optimizer_bytes(optimizer: torch.optim.Optimizer | None) -> int:
    if optimizer is None:
        return 0
    states = list(optimizer.state.values())
    return _size_bytes(value for state in states for value in list(state.values()) if isinstance(value, Tensor))


def _size_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
