"""The predicted times and memory of a plan, which tables, JSON and drawings show. `predicting` computes them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of memory on each device of a stage."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    stashed: int = 0
    """Weights of earlier versions that backwards still need."""
    buffers: int = 0
    activations: int = 0
    """Activations that forwards in flight keep for their backwards."""

    @property
    def total(self) -> int:
        """The sum of all fields, in bytes."""
        return sum(getattr(self, part.name) for part in fields(self))


@dataclass(frozen=True, slots=True)
class StagePrediction:
    """The prediction for one stage, for one micro-batch on one of its devices."""

    forward_s: float
    backward_s: float
    """Includes the second forward if the stage recomputes."""
    link_s: float
    """Seconds of its busiest port."""
    reduce_s: float
    """Seconds to sum gradients over its replicas, once per update."""
    in_flight: int
    """Most micro-batches on each device whose forward is done and whose backward is not."""
    memory: MemoryUse
    busy: float
    """Share of the step in which its devices compute, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """The bytes that pass between two stages in one step."""

    source: int
    target: int
    forward_bytes: int
    """Bytes of values, from `source` to `target`."""
    backward_bytes: int
    """Bytes of gradients, from `target` to `source`."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted performance of a plan on the topology that it was made for."""

    partitioner: str
    cost_model: str
    topology: str
    """Description of the topology."""
    num_devices: int
    objective_s: float
    """Seconds per mini-batch of `micro_batches` micro-batches, by the partitioner's cost model."""
    lower_bound_s: float | None
    """Lower bound of the objective over all plans that meet the request; None: the partitioner has no bound."""
    least_objective_s: float
    """The least objective of all plans that were found; less than `objective_s` if the simulator preferred this plan.
    """
    planning_s: float
    """Seconds that the search took, without loading files and modules."""
    step_s: float
    """Seconds per mini-batch in the simulator."""
    samples_per_s: float
    idle: float
    """Share of all devices' time in which they are idle, from 0 to 1, in the simulator."""
    speedup_over_one: float
    """Speedup over a single device, and over data parallelism on all devices, by the same cost model."""
    speedup_over_data_parallel: float
    simulated_speedup_over_one: float
    """The same speedups by the simulator."""
    simulated_speedup_over_data_parallel: float
    data_parallel_bytes: int
    """Bytes that data parallelism would need on each device, and the least memory limit of all devices; None: no limit.
    """
    memory_bytes: int | None
    bottleneck: str
    """Description of the bottleneck."""
    stages: tuple[StagePrediction, ...]
    links: tuple[LinkLoad, ...]
    notes: tuple[str, ...] = ()
    """Remarks of the partitioner on how it found the plan."""

    @property
    def gap(self) -> float | None:
        """Excess of the least objective over the bound, as a share of the bound: the most that the search can miss."""
        return gap_above(self.lower_bound_s, self.least_objective_s)


def gap_above(lower_bound_s: float | None, objective_s: float) -> float | None:
    """Return the excess of an objective over its bound, as a share of the bound (0.05 for 5 %); None without a bound.

    Args:
        lower_bound_s: the bound, in seconds; None: there is none.
        objective_s: the objective, in seconds.
    """
    if lower_bound_s is None:
        return None
    if objective_s <= lower_bound_s:
        return 0.0
    return objective_s / lower_bound_s - 1 if lower_bound_s else math.inf
