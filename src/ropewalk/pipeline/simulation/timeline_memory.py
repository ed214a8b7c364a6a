"""Memory over time: the bytes that a worker of a timeline holds at each time, from the order of its actions.

always      weights, one gradient, the optimizer's copies, buffers
versions    older weights, from the Step that makes a newer version to the last action that uses them
in flight   the tensors that a forward saves, from the start of F to the end of B; or to the end of I, and the part
            that W needs to the end of W. Under recomputation F keeps the stage's inputs, and C the rest from its start
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.plans import PlanWorker
from ropewalk.pipeline.simulation.spans import COMPUTING
from ropewalk.pipeline.simulation.stage_load import StageLoad

if TYPE_CHECKING:  # `timeline.py` imports this module
    from ropewalk.pipeline.simulation.timeline import Timeline


class MemorySample(NamedTuple):
    """The memory of a worker from `time_s` on, in bytes."""

    time_s: float
    weights: int
    gradients: int
    optimizer: int
    stashed: int
    buffers: int
    activations: int

    @property
    def total(self) -> int:
        """The sum of all fields but the time, in bytes."""
        return self.weights + self.gradients + self.optimizer + self.stashed + self.buffers + self.activations


def memory_over_time(timeline: Timeline, worker: PlanWorker) -> list[MemorySample]:
    """Return the memory of a worker over time; each sample holds until the next, the first from the start."""
    loads = timeline.loads
    stages = timeline.plan.groups[worker.group]
    weights = sum(loads[stage].weight_bytes for stage in stages)
    buffers = sum(loads[stage].buffer_bytes for stage in stages)
    optimizer = weights * timeline.optimizer_slots
    versions = _Versions(loads, timeline.actions[worker])
    kept: dict[tuple[int, int | None], int] = {}
    activations = 0
    curve = [MemorySample(0.0, weights, weights, optimizer, 0, buffers, 0)]

    def note(time_s: float) -> None:
        now = MemorySample(time_s, weights, weights, optimizer, versions.stashed_bytes, buffers, activations)
        if now[1:] != curve[-1][1:]:
            if curve[-1].time_s == time_s and now.total >= curve[-1].total:
                curve.pop()  # of samples at the same time the larger one is kept
            curve.append(now)

    for place, (_, action, start_s, end_s) in enumerate(timeline.spans(worker)):
        load, key = loads[action.stage], (action.stage, action.micro_batch)
        if action.kind in (ActionKind.FORWARD, ActionKind.RECOMPUTE):
            more = load.kept_bytes if action.kind is ActionKind.FORWARD and load.recompute else load.saved_bytes
            kept[key] = kept.get(key, 0) + more
            activations += more
            note(start_s)
        left = {ActionKind.BACKWARD: 0, ActionKind.WEIGHT_GRADIENT: 0, ActionKind.INPUT_GRADIENT: load.held_bytes}.get(
            action.kind
        )
        if left is not None:
            activations += left - kept.get(key, 0)
            kept[key] = left
        versions.after(place, action)
        note(end_s)
    return curve


def peak_memory(timeline: Timeline) -> Mapping[PlanWorker, MemorySample]:
    """Return the first sample of each worker with the most memory."""
    return {
        worker: max(memory_over_time(timeline, worker), key=lambda memory: memory.total) for worker in timeline.workers
    }


def most_in_flight(timeline: Timeline, stage: int) -> int:
    """Return the most micro-batches that a replica of a stage has between the start of F and the end of B or I."""
    return _most(timeline, stage, (ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT))


def most_held(timeline: Timeline, stage: int) -> int:
    """Return the most micro-batches that a replica of a stage has between the start of F and the end of B or W."""
    return _most(timeline, stage, (ActionKind.BACKWARD, ActionKind.WEIGHT_GRADIENT))


def _most(timeline: Timeline, stage: int, ends: tuple[ActionKind, ...]) -> int:
    most = 0
    for worker in timeline.workers:
        now = 0
        for action in timeline.actions[worker]:
            if action.stage == stage:
                now += (action.kind is ActionKind.FORWARD) - (action.kind in ends)
                most = max(most, now)
    return most


class _Versions:
    """The older versions of the weights of a worker's stages that are still needed."""

    def __init__(self, loads: Sequence[StageLoad], actions: Sequence[Action]) -> None:
        self._loads = loads
        self._last_use: dict[tuple[int, int], int] = {}
        self._newest: dict[int, int] = {}
        for place, action in enumerate(actions):
            if action.version is not None and action.kind in COMPUTING:
                self._last_use[action.stage, action.version] = place
                self._newest.setdefault(action.stage, action.version)
        self._live: dict[int, set[int]] = defaultdict(set)
        self.stashed_bytes = 0

    def after(self, place: int, action: Action) -> None:
        """Record the end of an action.

        Args:
            place: index of the action in the worker's list.
            action: the action.
        """
        stage, version = action.stage, action.version
        if version is None:
            return
        live, size = self._live[stage], self._loads[stage].weight_bytes
        if action.kind is ActionKind.STEP:
            old = self._newest.get(stage, version - 1)
            if self._last_use.get((stage, old), -1) > place:
                live.add(old)
                self.stashed_bytes += size
            self._newest[stage] = version
        elif action.kind in COMPUTING and version in live and self._last_use[stage, version] == place:
            live.remove(version)
            self.stashed_bytes -= size
