"""The costs of all candidates for a stage on given devices, as arrays: `cost`'s formulas, many stages at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from ropewalk.pipeline.cost import (
    activation_bytes,
    fastest_speed,
    further_rounds,
    reduce_s,
    update_pieces,
    weight_copies,
)
from ropewalk.pipeline.partitioners.cost_model import CostModel, StageColumns
from ropewalk.pipeline.partitioners.exact_search.candidates import Candidates, Flags, Floats
from ropewalk.pipeline.partitioners.exact_search.placement import Move
from ropewalk.pipeline.partitioners.partitioner import PlanRequest


@dataclass(frozen=True, slots=True)
class Costs:
    """Of each candidate: what the plan's maximum and its sum take of it; `inf` where it may not be."""

    slowest: Floats
    total: Floats
    recompute: Flags


class CostOfMoves(Protocol):
    """How the search asks for costs."""

    def of(self, move: Move) -> Costs:
        """The costs of all candidates as the stage of this move."""
        ...


@dataclass(frozen=True)
class _OnDevices:
    request: PlanRequest
    candidates: Candidates
    num_stages: int
    """Stages of the whole plan, where memory depends on it."""
    stages_per_device: int = field(default=1, kw_only=True)
    """Each stage has this part of a device's time and memory."""

    @cached_property
    def _known(self) -> dict[object, Costs]:
        return {}

    def _memory(self, move: Move) -> tuple[int, int, int, int]:
        """What a stage keeps: micro-batches in flight, held, and between halves; versions beside the newest."""
        schedule, used, replicas = self.request.schedule, move.after.used, len(move.devices)
        in_flight = schedule.in_flight(used, replicas, self.request.micro_batches)
        held = schedule.held(used, replicas, self.request.micro_batches, self.num_stages)
        between = schedule.between_halves(used, replicas, self.request.micro_batches, self.num_stages)
        return in_flight, held, between, schedule.extra_versions(used, replicas, self.num_stages)

    def _bytes(self, move: Move, recompute: bool) -> Floats:
        in_flight, held, between, extra = self._memory(move)
        them = self.candidates
        return (
            them.weight_bytes * weight_copies(self.request.optimizer_slots, extra)
            + them.buffer_bytes
            + activation_bytes(them.saved_bytes, them.kept_bytes, them.held_bytes, in_flight, held, between, recompute)
        )

    def _once(self, key: object, make: Callable[[], Costs]) -> Costs:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]


@dataclass(frozen=True)
class ObjectiveCosts(_OnDevices):
    """The planner's objective, in seconds (docs/theory.md, "Objective of the planner").

    Without a flush the sum is of what its maximum hides: Reduce and transfers.
    """

    least_slowest: float = 0.0
    """For bounds: no stage counts as quicker than this."""
    sums_work: bool = True
    """For bounds: the sum is without forwards and backwards, which are the same in all plans."""
    tie_replicas: int | None = None
    """If given, only stages with this number of replicas may share a parameter with others; 0: none may."""

    def of(self, move: Move) -> Costs:
        """The costs of all candidates as the stage of this move; each recomputes only if it must, or was told to."""
        limit = self.request.memory_limit(move.kind) / self.stages_per_device
        memory = self._memory(move) if limit < np.inf else None
        level = self.request.topology.level_of(move.devices)
        key = (move.kind, len(move.devices), id(level), move.before.level, move.after.level, memory)
        return self._once(key, lambda: self._make(move, limit))

    def _make(self, move: Move, limit: float) -> Costs:
        them, request, replicas = self.candidates, self.request, len(move.devices)
        speed = request.topology.kinds[move.kind].speed
        recompute = np.full(len(them.before), request.recompute is True)
        fits = them.computes
        if self.tie_replicas not in (None, replicas):
            fits = fits & ~them.splits_tie
        if limit < np.inf:
            with_it = self._bytes(move, recompute=True) <= limit
            without = self._bytes(move, recompute=False) <= limit
            if request.recompute is None:
                recompute = ~without
            fits = fits & np.where(recompute, with_it, without)
        each = self.stages_per_device
        compute_s = (them.forward_s * (1.0 + recompute) + them.backward_s) / speed
        sum_s = reduce_s(them.weight_bytes, replicas, request.topology.level_of(move.devices))
        link_s = self._busiest_port_s(move.before.level, move.after.level) / replicas
        if not request.schedule.flushes:
            most, size = update_pieces(request, replicas)
            slowest = np.maximum((most * compute_s + sum_s) / size, link_s) * each
            return _where(fits, np.maximum(slowest, self.least_slowest), sum_s + self._transit_s(move), recompute)
        rounds, batches = further_rounds(request.micro_batches, replicas) * each, request.micro_batches
        slowest = np.maximum(np.maximum(compute_s * rounds, link_s * (batches - 1) * each), self.least_slowest)
        total_s = compute_s * self.sums_work + np.maximum(0.0, sum_s - them.earlier_s / fastest_speed(request))
        return _where(fits, slowest, total_s + self._transit_s(move), recompute)

    def _transit_s(self, move: Move) -> Floats:
        """Seconds in which what a stage receives, and the gradients of it, are under way."""
        total_s = np.zeros(len(self.candidates.before))
        if move.before.level >= 0:
            level = self.request.topology.levels[move.before.level]
            for size_bytes in (self.candidates.in_bytes, self.candidates.in_gradient_bytes):
                total_s += size_bytes / level.bandwidth + level.latency_s * (size_bytes > 0)
        return total_s

    def _busiest_port_s(self, before: int, after: int) -> Floats:
        """`cost.busiest_port_s` of all candidates."""
        them, levels = self.candidates, self.request.topology.levels
        if before < 0 and after < 0:
            return np.zeros(len(them.before))
        if before < 0 or after < 0 or before == after:
            return np.maximum(
                them.in_bytes * (before >= 0) + them.out_gradient_bytes * (after >= 0),
                them.in_gradient_bytes * (before >= 0) + them.out_bytes * (after >= 0),
            ) / (levels[max(before, after)].bandwidth)
        return np.maximum(
            np.maximum(them.in_bytes, them.in_gradient_bytes) / levels[before].bandwidth,
            np.maximum(them.out_bytes, them.out_gradient_bytes) / levels[after].bandwidth,
        )


@dataclass(frozen=True)
class MemoryCosts(_OnDevices):
    """Bytes that a device would need beyond its limit (below 0: that stay free), to say what would do."""

    recompute: bool | None = None
    """Whether stages may recompute, must, or must not, as in PlanRequest."""

    def of(self, move: Move) -> Costs:
        """The bytes beyond the limit of all candidates as the stage of this move."""
        limit = self.request.memory_limit(move.kind)
        limit = 0.0 if limit == np.inf else limit
        return self._once((limit, self._memory(move)), lambda: self._make(move, limit))

    def _make(self, move: Move, limit: float) -> Costs:
        with_it, without = self._bytes(move, recompute=True), self._bytes(move, recompute=False)
        chosen = np.minimum(with_it, without)
        if self.recompute is not None:
            chosen = with_it if self.recompute else without
        beyond = chosen * self.stages_per_device - limit
        return _where(self.candidates.computes, beyond, chosen, chosen == with_it)


@dataclass(frozen=True)
class ModelCosts(_OnDevices):
    """Another cost model's slowest stage."""

    model: CostModel
    columns: StageColumns

    def of(self, move: Move) -> Costs:
        """The costs of all candidates as the stage of this move."""
        return self._once(len(move.devices), lambda: self._make(move))

    def _make(self, move: Move) -> Costs:
        bandwidth = self.request.topology.levels[0].bandwidth
        slowest = self.model.bottleneck_s(self.columns, len(move.devices), bandwidth)
        none = np.zeros(len(slowest), dtype=np.bool_)
        return _where(self.candidates.computes, slowest, slowest, none)


def _where(fits: Flags, slowest: Floats, total: Floats, recompute: Flags) -> Costs:
    return Costs(np.where(fits, slowest, np.inf), np.where(fits, total, np.inf), recompute)


def columns(candidates: Candidates, crossing: Floats) -> StageColumns:
    """What another cost model sees of the candidates; `crossing` are the bytes that cross behind each set."""
    return StageColumns(
        compute_s=candidates.forward_s + candidates.backward_s,
        weight_bytes=candidates.weight_bytes,
        before_bytes=crossing[candidates.before],
        after_bytes=crossing[candidates.after],
        is_first=candidates.before == 0,
        is_last=candidates.after == len(candidates.sets) - 1,
    )
