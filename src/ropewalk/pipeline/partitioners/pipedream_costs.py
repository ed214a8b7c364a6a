"""What a stage costs by PipeDream: as its paper says, and as its repository computes it; the two differ.

Seconds of one mini-batch, for T seconds of forward and backward (at an outer level: of the slowest
stage of the pipeline inside), W bytes of weights, a bytes of values that cross a cut, r replicas,
B bytes per second:

                                   the stage                         each cut
    paper, every stage             max(T, 2 (r-1)/r W / B) / r       2 a / B
    repository, behind a cut       (T + 4 (r-1) W / (B r)) / r       2 a / (B r), before it and behind it
    repository, first or only      (T + 4 (r-1) W / (B r n)) / r     free; n is the size of the level below

The paper (Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP'19,
section 3.1) says in its text that each replica sends and receives (r-1)/r W, and leaves out that 1/r
in its displayed formula; only the text's version gives the paper's own plan for ResNet-50. The
repository is msr-fiddle/pipedream, `optimizer_graph_hierarchical.py`: a cut is charged for the
replicas of one side, never of the neighbour. A skip over several cuts is paid at each of them.

All of it is elementwise: on arrays that broadcast.
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
        free_transfers: cuts cost nothing.
    """

    #: What `PipeDream(cost_model=...)` calls it.
    name: ClassVar[str]
    free_transfers: bool = False

    @abstractmethod
    def cut_bytes(self, states: States) -> Floats:
        """What crosses the cut behind each state."""
        ...

    @abstractmethod
    def first_stage_s(
        self, below_s: Floats, weight_bytes: Floats, replicas: int, bandwidth: float, size: int
    ) -> Floats:
        """Seconds of a stage that nothing comes before at its level.

        Args:
            below_s: of the slowest stage of the pipeline that each replica is; at the innermost level of the work.
            weight_bytes: of the stage.
            replicas: components of the level below that run it.
            bandwidth: of this level, bytes per second.
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
        """Seconds of a stage behind a cut, or of its cuts if they take longer."""
        ...

    def bottleneck_s(self, stages: StageColumns, replicas: int, bandwidth: float) -> Floats:
        """The same for `Exact(cost_model=...)`, at the only level."""
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
    """What msr-fiddle/pipedream computes.

    Cuts are free there unless `--activation_compression_ratio` is given.
    """

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
        if not self.free_transfers:  # in place: these are the largest tables there are
            np.maximum(stage_s, in_bytes * (2 / (bandwidth * replicas)), out=stage_s)
            np.maximum(stage_s, out_bytes * (2 / (bandwidth * replicas)), out=stage_s)
        return stage_s


@dataclass(frozen=True)
class PaperCosts(PipeDreamCosts):
    """What the text of the paper says."""

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
    """The cost model of this name.

    Raises:
        PlanInvalid: there is none.
    """
    if name not in COST_MODELS:
        raise PlanInvalid(f"there is no cost model {name!r}; PipeDream has {' and '.join(map(repr, COST_MODELS))}")
    return COST_MODELS[name](free_transfers)
