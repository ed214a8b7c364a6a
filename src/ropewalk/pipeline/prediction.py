"""What a plan will do, in numbers: the record that tables, JSON and drawings show. `predicting` computes it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes on each device of a stage."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    #: Weights of earlier versions that backwards still need.
    stashed: int = 0
    buffers: int = 0
    #: What forwards in flight keep for their backwards.
    activations: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, part.name) for part in fields(self))


@dataclass(frozen=True, slots=True)
class StagePrediction:
    """One stage, for one micro-batch on one of its devices."""

    forward_s: float
    #: With the forward again if the stage recomputes.
    backward_s: float
    #: Seconds of its busiest port.
    link_s: float
    #: Seconds to sum gradients over its replicas, once per update.
    reduce_s: float
    #: Micro-batches whose forward is done and whose backward is not, at most, on each device.
    in_flight: int
    memory: MemoryUse
    #: Share of the step in which its devices compute, 0 to 1.
    busy: float


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """What passes between two stages in one step."""

    source: int
    target: int
    #: Values forwards.
    forward_bytes: int
    #: Gradients back.
    backward_bytes: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a plan will do on the topology it was made for."""

    partitioner: str
    cost_model: str
    #: The topology in words.
    topology: str
    num_devices: int
    #: Seconds per mini-batch of `micro_batches` micro-batches, by the partitioner's cost model.
    objective_s: float
    #: No plan that was asked for can take less by that model; None: the partitioner has no bound.
    lower_bound_s: float | None
    #: The least objective of all plans that were found; that of this plan, unless the simulator chose another.
    least_objective_s: float
    #: Seconds that the search took, without reading and importing.
    planning_s: float
    #: Seconds per mini-batch in the simulator.
    step_s: float
    samples_per_s: float
    #: Share of all devices' time in which none of the step's work is done, in the simulator.
    idle: float
    #: How many times faster than one device alone, and than whole copies on all devices, by the same cost model.
    speedup_over_one: float
    speedup_over_data_parallel: float
    #: The same by the simulator.
    simulated_speedup_over_one: float
    simulated_speedup_over_data_parallel: float
    #: Bytes that whole copies would need on each device, and what each device has, at least; None: not limited.
    data_parallel_bytes: int
    memory_bytes: int | None
    #: What holds the plan back, in words.
    bottleneck: str
    stages: tuple[StagePrediction, ...]
    links: tuple[LinkLoad, ...]
    #: What the partitioner says of how the plan was found.
    notes: tuple[str, ...] = ()

    @property
    def gap(self) -> float | None:
        """How far the least objective found is above the bound, as a share of the bound: what the search may miss."""
        return gap_above(self.lower_bound_s, self.least_objective_s)


def gap_above(lower_bound_s: float | None, objective_s: float) -> float | None:
    """How far an objective is above its bound: 0.05 for 5 % of the bound. None: there is no bound."""
    if lower_bound_s is None:
        return None
    if objective_s <= lower_bound_s:
        return 0.0
    return objective_s / lower_bound_s - 1 if lower_bound_s else math.inf
