"""The search over chains, with costs that are easy to see through."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from ropewalk.pipeline.partitioners.exact_search.candidates import Ints
from ropewalk.pipeline.partitioners.exact_search.chains import ChainSearch, least_sum
from ropewalk.pipeline.partitioners.exact_search.placement import Move, moves
from ropewalk.pipeline.partitioners.exact_search.stage_costs import Costs
from ropewalk.pipeline.topology import Level, Topology


@dataclass
class OneStage:
    """Everything or nothing."""

    num_sets: int = 2
    before: Ints = field(default_factory=lambda: np.array([0], dtype=np.intp))
    after: Ints = field(default_factory=lambda: np.array([1], dtype=np.intp))


@dataclass
class PerReplicas:
    """A maximum and a sum for each number of replicas."""

    costs: dict[int, tuple[float, float]]

    def of(self, move: Move) -> Costs:
        """The costs of the stage of this move."""
        slowest, total = self.costs[len(move.devices)]
        return Costs(np.array([slowest]), np.array([total]), np.zeros(1, dtype=np.bool_))


@pytest.mark.parametrize(
    ("costs", "best"),
    [
        ({1: (10.0, 0.0), 2: (5.0, 1.0), 3: (1.0, 20.0)}, 2),  # between the least maximum and the least sum
        ({1: (10.0, 0.0), 2: (5.0, 6.0), 3: (1.0, 20.0)}, 1),
        ({1: (10.0, 0.0), 2: (5.0, 6.0), 3: (1.0, 2.0)}, 3),
        ({1: (0.0, 0.0), 2: (0.0, 0.0), 3: (0.0, 0.0)}, 1),
    ],
)
def test_the_least_sum_and_maximum_together_are_found(costs: dict[int, tuple[float, float]], best: int) -> None:
    search = ChainSearch(OneStage(), moves(Topology((Level(3),)), (1, 2, 3)), PerReplicas(costs))
    chain = least_sum(search, search.least_slowest(), 1.0)
    assert chain is not None
    assert [len(link.move.devices) for link in chain.links] == [best]
