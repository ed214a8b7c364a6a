"""A timeline: the actions of each worker of a plan and their times, the transfers, and statistics of both.

    worker 0.0  F0 F1 F2 ── B0 ── B1 ── B2
    worker 1.0     F0 B0 F1 B1 F2 B2          a span is work; gaps between spans are waits

`simulate` makes timelines. A timeline prints itself for a terminal, and draws itself as an
SVG image (`svg`) and as a trace for Perfetto (`trace`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.plan_table import shown_stages
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.simulation.spans import COMPUTING, ActionSpan, Summing, TensorTransfer
from ropewalk.pipeline.simulation.stage_load import StageLoad
from ropewalk.pipeline.simulation.timeline_memory import MemorySample, memory_over_time, peak_memory
from ropewalk.pipeline.simulation.timeline_svg import timeline_svg
from ropewalk.pipeline.simulation.timeline_text import timeline_text
from ropewalk.pipeline.simulation.timeline_trace import timeline_trace
from ropewalk.pipeline.topology import Topology


@dataclass(frozen=True, repr=False)
class Timeline:
    """The actions of each worker, with their times. Times are seconds from the start."""

    plan: Plan
    topology: Topology
    loads: tuple[StageLoad, ...]
    """The load of each stage on its devices."""
    optimizer_slots: int
    actions: Mapping[PlanWorker, Sequence[Action]]
    starts: Mapping[PlanWorker, Sequence[float]]
    """When each action began and ended, in the order of `actions`."""
    ends: Mapping[PlanWorker, Sequence[float]]
    transfers: tuple[TensorTransfer, ...]
    sums: tuple[Summing, ...]
    flushes: bool = True
    """Whether the pipeline is empty at the end of a step, so that the length of the timeline is that of a step."""
    round_size: int = 1
    """Micro-batches after which all stages have ended their rounds together; 1 if that is not known."""

    @property
    def workers(self) -> tuple[PlanWorker, ...]:
        """All workers, by group and replica."""
        return self.plan.workers

    def spans(self, worker: PlanWorker) -> Iterator[ActionSpan]:
        """Yield the actions of a worker, in order."""
        columns = zip(self.actions[worker], self.starts[worker], self.ends[worker], strict=True)
        return (ActionSpan(worker, action, start, end) for action, start, end in columns)

    def memory(self, worker: PlanWorker) -> list[MemorySample]:
        """Return the memory of a worker over time; each sample holds until the next, the first from the start."""
        return memory_over_time(self, worker)

    @cached_property
    def peak_memory(self) -> Mapping[PlanWorker, MemorySample]:
        """The first sample of each worker with the most memory."""
        return peak_memory(self)

    # --- drawings -----------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        num = sum(map(len, self.actions.values()))
        return f"<timeline of {num} actions of {len(self.workers)} workers, {self.length_s:.4g} s>"

    def __str__(self) -> str:
        return self.text()

    def text(self, *, width: int = 120, max_workers: int = 64) -> str:
        """Draw the timeline as text.

        Args:
            width: columns of the text.
            max_workers: most workers to draw; the first ones are drawn.
        """
        return timeline_text(self, width=width, max_workers=max_workers)

    def svg(self, *, width: int = 1400, max_workers: int = 64) -> str:
        """Draw the timeline as an SVG document.

        Args:
            width: width of the image in pixels.
            max_workers: most workers to draw; the first ones are drawn.
        """
        return timeline_svg(self, width=width, max_workers=max_workers)

    def trace(self) -> bytes:
        """Return the trace as JSON, to be opened at ui.perfetto.dev."""
        return timeline_trace(self)

    def save_trace(self, path: str | Path) -> None:
        """Write the trace to a file.

        Args:
            path: path of the file.
        """
        Path(path).write_bytes(self.trace())

    # --- time ---------------------------------------------------------------------------------------------------------

    @cached_property
    def length_s(self) -> float:
        """Seconds from the start of the timeline to the end of its last action."""
        return max((ends[-1] for ends in self.ends.values() if ends), default=0.0)

    @cached_property
    def _left_last_stage(self) -> list[float]:
        """When each micro-batch left the last stage, in order."""
        last = len(self.plan.stages) - 1
        return sorted(
            end
            for worker in self.workers
            for action, end in zip(self.actions[worker], self.ends[worker], strict=True)
            if action.kind is ActionKind.FORWARD and action.stage == last
        )

    @cached_property
    def step_s(self) -> float:
        """Seconds per step of `plan.micro_batches` micro-batches.

        If the pipeline flushes, this is the whole length. Without a flush it follows from the rate at which
        micro-batches leave the last stage in the second half of the time, when the pipeline is full: over whole rounds
        of all stages and turns of all replicas, if that half has any. With more micro-batches it is closer to the
        steady rate.
        """
        if self.flushes:
            return self.length_s
        left = self._left_last_stage
        half = (len(left) - 1) // 2
        if half < 1:
            return self.length_s * self.plan.micro_batches / max(1, len(left))
        rounds = math.lcm(self.round_size, *(stage.replicas for stage in self.plan.stages))
        num = half // rounds * rounds or half // self.round_size * self.round_size or half
        return (left[-1] - left[-1 - num]) / num * self.plan.micro_batches

    @cached_property
    def compute_s(self) -> Mapping[PlanWorker, float]:
        """Seconds for which each worker computed."""
        return {
            worker: math.fsum(
                end - start
                for action, start, end in zip(self.actions[worker], self.starts[worker], self.ends[worker], strict=True)
                if action.kind in COMPUTING
            )
            for worker in self.workers
        }

    @cached_property
    def idle_s(self) -> Mapping[PlanWorker, float]:
        """Seconds of the whole length for which each worker performed no action."""
        return {
            worker: self.length_s
            - math.fsum(end - start for start, end in zip(self.starts[worker], self.ends[worker], strict=True))
            for worker in self.workers
        }

    @property
    def idle(self) -> float:
        """Share of all workers' time in which they performed no action, from 0 to 1."""
        whole = self.length_s * len(self.workers)
        return math.fsum(self.idle_s.values()) / whole if whole else 0.0

    @property
    def range_s(self) -> float:
        """The longest time from the start of a worker's first action to the end of its last, in seconds."""
        return max(
            (self.ends[worker][-1] - self.starts[worker][0] for worker in self.workers if self.ends[worker]),
            default=0.0,
        )

    @property
    def bubble_s(self) -> float:
        """Seconds by which the step exceeds the computing time of its busiest worker: `range_s` less that time.

        With equal stages each worker computes m (t_F + t_B + t_W), and this is the bubble of docs/theory.md, "Bubble".
        """
        return self.range_s - max(self.compute_s.values())

    # --- bytes --------------------------------------------------------------------------------------------------------

    @cached_property
    def bytes_between(self) -> Mapping[tuple[PlanWorker, PlanWorker], int]:
        """Bytes that each worker sent to each other worker, without reductions."""
        total: dict[tuple[PlanWorker, PlanWorker], int] = defaultdict(int)
        for transfer in self.transfers:
            total[transfer.sender, transfer.receiver] += transfer.size_bytes
        return dict(total)

    @cached_property
    def bytes_of_level(self) -> tuple[int, ...]:
        """Bytes that passed at each level of the topology, including reductions."""
        total = [0] * len(self.topology.levels)
        for transfer in self.transfers:
            if transfer.level >= 0:
                total[transfer.level] += transfer.size_bytes
        for summing in self.sums:
            if summing.level >= 0:
                total[summing.level] += summing.sent_bytes
        return tuple(total)

    @cached_property
    def port_busy_s(self) -> Mapping[tuple[PlanWorker, int, str], float]:
        """Seconds for which each port was busy, by worker, level, and "out" or "in"."""
        total: dict[tuple[PlanWorker, int, str], float] = defaultdict(float)
        for transfer in self.transfers:
            if transfer.level >= 0:
                total[transfer.sender, transfer.level, "out"] += transfer.port_s
                total[transfer.receiver, transfer.level, "in"] += transfer.port_s
        return dict(total)

    @property
    def busiest(self) -> str:
        """A description of the device or port that is busy for the largest share of the time."""
        worker = max(self.workers, key=lambda worker: (self.compute_s[worker], -worker.group))
        share, text = self.compute_s[worker], self._named(worker) + " computes"
        for (owner, level, way), busy_s in self.port_busy_s.items():
            if busy_s > share:
                share, text = busy_s, f"the port {way} of {self._named(owner)} at level {level + 1} is busy"
        for owner, busy_s in self._summing_s().items():
            if busy_s > share:
                share, text = busy_s, f"{self._named(owner)} sums gradients"
        return f"{text} {100 * share / self.length_s if self.length_s else 0:.0f} % of the time"

    def _summing_s(self) -> Mapping[PlanWorker, float]:
        total: dict[PlanWorker, float] = defaultdict(float)
        for summing in self.sums:
            for worker in summing.workers:
                total[worker] += summing.end_s - summing.start_s
        return total

    def _named(self, worker: PlanWorker) -> str:
        stages = self.plan.groups[worker.group]
        return f"device {self.plan.device_of(worker)} ({shown_stages(stages)})"
