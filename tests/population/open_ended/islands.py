"""A family of environments that costs nothing: islands in a plane, each only felt by an agent that is near.

An agent is a point. In an environment its fitness is 300 at the target, falls by 100 for each unit of distance, and is
0 from 3 units on: an agent that starts further away learns nothing there, and has to come by other islands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

REACH = 3.0


def fitness(parameters: NDArray[np.floating], environment: list[float]) -> float:
    distance = float(np.linalg.norm(np.asarray(parameters[:2], np.float64) - environment))
    return 100 * max(0.0, REACH - distance)


@dataclass(frozen=True)
class Islands:
    """Targets as [x, y]; a child lies up to `step` from its parent in each direction."""

    step: float = 1.5
    start: tuple[float, float] = (0.0, 0.0)

    def initial(self) -> list[float]:
        return list(self.start)

    def mutate(self, environment: Any, rng: np.random.Generator) -> list[float]:
        return [float(value + rng.uniform(-self.step, self.step)) for value in environment]

    def vector(self, environment: Any) -> NDArray[np.float64]:
        return np.array(environment)

    def describe(self, environment: Any) -> str:
        x, y = environment
        return f"({x:.1f}, {y:.1f})"
