"""Counters that a worker keeps besides its actions: bytes, versions, copies, memory, snapshots; read for a report."""

from __future__ import annotations

import resource
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ropewalk.exchange.exchange import ExchangeReport
from ropewalk.pipeline.plans import PlanWorker
from ropewalk.pipeline.stages.running_stage import RunningStage


@dataclass(frozen=True, slots=True)
class WorkerCounters:
    """The counters of one worker since it began."""

    worker: PlanWorker
    host: str = ""
    pid: int = 0
    sent_bytes: Mapping[PlanWorker, int] = field(default_factory=dict[PlanWorker, int])
    """Bytes sent over each link, by the worker at the other end."""
    versions_held: Mapping[int, int] = field(default_factory=dict[int, int])
    """For each stage, the largest number of versions of its weights held at once."""
    num_updates: Mapping[int, int] = field(default_factory=dict[int, int])
    """For each stage, the number of its updates, and how many of them had to copy the weights first."""
    num_copies: Mapping[int, int] = field(default_factory=dict[int, int])
    peak_memory_bytes: int = 0
    """Peak memory of the whole process in bytes, and of its tensors on an accelerator if it has one."""
    peak_device_bytes: int | None = None
    num_snapshots: int = 0
    """Snapshots for recovery, and the seconds in which they kept the worker from computing."""
    snapshot_s: float = 0.0
    exchange: ExchangeReport | None = None
    """The cost of averaging between replicas, if an exchange does it."""
    notes: tuple[str, ...] = ()
    """Notes for the user."""

    @classmethod
    def of(cls, worker: PlanWorker, stages: Collection[RunningStage], **more: Any) -> WorkerCounters:
        """Collect the counters of a worker's stages and of this process, with further values in `more`."""
        device = next((one.device for stage in stages for one in stage.versions.parameters.values()), "cpu")
        return cls(
            worker,
            versions_held={stage.setup.id: stage.versions.most_versions for stage in stages},
            num_updates={stage.setup.id: stage.versions.newest for stage in stages},
            num_copies={stage.setup.id: stage.versions.num_copies for stage in stages},
            peak_memory_bytes=peak_memory_bytes(),
            peak_device_bytes=peak_device_bytes(device),
            **more,
        )


def peak_memory_bytes() -> int:
    """Return the peak memory of this process in bytes.

    It reads VmHWM, because `getrusage` includes the process that this one was forked or started from; some sandboxes
    have `getrusage` alone.
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        status = ""
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def peak_device_bytes(device: torch.device | str) -> int | None:
    """Return the peak memory of tensors on a device in bytes; None on a CPU."""
    where = torch.device(device)
    return torch.cuda.max_memory_allocated(where) if where.type == "cuda" else None
