"""The cost of a stage in PipeDream: by its paper, and by its repository; the two differ.

Seconds of one mini-batch, for T seconds of forward and backward (at an outer level: of the slowest
stage of the pipeline inside), W bytes of weights, a bytes of values that cross a cut, r replicas,
B bytes per second:

                                   the stage                         each cut
    paper, every stage             max(T, 2 (r-1)/r W / B) / r       2 a / B
    repository, after a cut        (T + 4 (r-1) W / (B r)) / r       2 a / (B r), before it and after it
    repository, first or only      (T + 4 (r-1) W / (B r n)) / r     free; n is the size of the level below

The paper (Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP'19,
section 3.1) says in its text that each replica sends and receives (r-1)/r W, and omits the 1/r in
its displayed formula; only the text's version gives the paper's own plan for ResNet-50. The
repository is msr-fiddle/pipedream, `optimizer_graph_hierarchical.py`: the cost of a cut depends on
the replicas of one side, never on those of the neighbour. A skip connection over several cuts is
charged at each of them.

All functions are elementwise, on float64 arrays that broadcast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ropewalk.errors import PlanInvalid
from ropewalk.pipeline.partitioners.antichains import Floats, States
from ropewalk.pipeline.partitioners.cost_model import StageColumns


@dataclass(frozen=True)
class PipeDreamCosts(ABC):
    """A cost model of PipeDream's recurrence.

    Args:
        free_transfers: whether cuts cost nothing.
    """

    name: ClassVar[str]
    """Its name in `PipeDreamPartitioner(cost_model=...)`."""
    free_transfers: bool = False

    @abstractmethod
    def cut_bytes(self, states: States) -> Floats:
        """Return the bytes that cross the cut after each state."""
        ...

    @abstractmethod
    def first_stage_s(
        self, below_s: Floats, weight_bytes: Floats, replicas: int, bandwidth: float, size: int
    ) -> Floats:
        """Return the seconds of a stage that is the first at its level.

        Args:
            below_s: seconds of the slowest stage of the pipeline that each replica is; at the innermost level, seconds
                of forward and backward.
            weight_bytes: bytes of the stage's weights.
            replicas: components of the level below that run the stage.
            bandwidth: bytes per second of this level.
            size: components that the level below joins.
        """
        ...

    @abstractmethod
    def later_stage_s(
        self,
        below_s: Floats,
        weight_bytes: Floats,
        in_bytes: Floats,
        out_bytes: Floats,
        replicas: int,
        bandwidth: float,
    ) -> Floats:
        """Return the seconds of a stage after a cut, or of its cuts if they take longer.

        Args:
            below_s: as for `first_stage_s`.
            weight_bytes: bytes of the stage's weights.
            in_bytes: bytes that cross the cut before the stage.
            out_bytes: bytes that cross the cut after it.
            replicas: components of the level below that run the stage.
            bandwidth: bytes per second of this level.
        """
        ...

    def bottleneck_s(self, stages: StageColumns, replicas: int, bandwidth: float) -> Floats:
        """Return the seconds of candidates for `Exact(cost_model=...)`, with a single level; see `CostModel`."""
        first = self.first_stage_s(stages.compute_s, stages.weight_bytes, replicas, bandwidth, size=1)
        later = self.later_stage_s(
            stages.compute_s,
            stages.weight_bytes,
            stages.before_bytes,
            np.where(stages.is_last, 0.0, stages.after_bytes),
            replicas,
            bandwidth,
        )
        return np.where(stages.is_first, first, later)


@dataclass(frozen=True)
class RepositoryCosts(PipeDreamCosts):
    """The costs of msr-fiddle/pipedream, where cuts are free unless `--activation_compression_ratio` is given."""

    name = "repository"

    def cut_bytes(self, states: States) -> Floats:
        return states.augmented_bytes

    def first_stage_s(
        self, below_s: Floats, weight_bytes: Floats, replicas: int, bandwidth: float, size: int
    ) -> Floats:
        if replicas == 1:
            return below_s.copy()
        seconds = weight_bytes * (4 * (replicas - 1) / (bandwidth * replicas) / size)
        seconds += below_s
        seconds /= replicas
        return seconds

    def later_stage_s(
        self,
        below_s: Floats,
        weight_bytes: Floats,
        in_bytes: Floats,
        out_bytes: Floats,
        replicas: int,
        bandwidth: float,
    ) -> Floats:
        stage_s = self.first_stage_s(below_s, weight_bytes, replicas, bandwidth, 1)
        if not self.free_transfers:  # in place, since these are the largest tables
            np.maximum(stage_s, in_bytes * (2 / (bandwidth * replicas)), out=stage_s)
            np.maximum(stage_s, out_bytes * (2 / (bandwidth * replicas)), out=stage_s)
        return stage_s


@dataclass(frozen=True)
class PaperCosts(PipeDreamCosts):
    """The costs of the paper's text."""

    name = "paper"

    def cut_bytes(self, states: States) -> Floats:
        return states.crossing_bytes

    def first_stage_s(
        self, below_s: Floats, weight_bytes: Floats, replicas: int, bandwidth: float, size: int
    ) -> Floats:
        return np.maximum(below_s, 2 * (replicas - 1) / replicas * weight_bytes / bandwidth) / replicas

    def later_stage_s(
        self,
        below_s: Floats,
        weight_bytes: Floats,
        in_bytes: Floats,
        out_bytes: Floats,
        replicas: int,
        bandwidth: float,
    ) -> Floats:
        stage_s = self.first_stage_s(below_s, weight_bytes, replicas, bandwidth, 1)
        return stage_s if self.free_transfers else np.maximum(stage_s, 2 * in_bytes / bandwidth)


COST_MODELS: dict[str, type[PipeDreamCosts]] = {"repository": RepositoryCosts, "paper": PaperCosts}


def make_cost_model(name: str, *, free_transfers: bool = False) -> PipeDreamCosts:
    """Make the cost model of a name.

    Args:
        name: "repository" or "paper".
        free_transfers: whether cuts cost nothing.

    Raises:
        PlanInvalid: no cost model has this name.
    """
    if name not in COST_MODELS:
        raise PlanInvalid(f"there is no cost model {name!r}; PipeDream has {' and '.join(map(repr, COST_MODELS))}")
    return COST_MODELS[name](free_transfers)
