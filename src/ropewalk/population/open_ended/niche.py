"""A niche of POET: an environment, its agent, and how the agent learns there by an evolution strategy."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from ropewalk.argument_kinds import check_number
from ropewalk.population.open_ended.bouts import AgentEnvPair
from ropewalk.population.open_ended.environment_space import Environment
from ropewalk.population.optimizers import make_optimizer
from ropewalk.population.ranks import shaping
from ropewalk.population.weighted_sum import Vector


@dataclass(frozen=True, slots=True)
class ESConfig:
    """The learning of agents, with the values of the paper (appendix A and its code): OpenAI-ES with Adam.

    Noise and learning rate shrink with each step of a niche, and are reset when another agent moves in.
    """

    pairs: int = 256
    """Number of mirrored pairs of evaluations per step."""
    sigma: float = 0.1
    """Initial standard deviation of the noise."""
    sigma_decay: float = 0.999
    """Factor of `sigma` after each step."""
    least_sigma: float = 0.01
    learning_rate: float = 0.01
    """Initial learning rate."""
    learning_rate_decay: float = 0.9999
    least_learning_rate: float = 0.001
    weight_decay: float = 0.01
    """Factor of the parameters that are subtracted from the gradient."""
    optimizer: str = "adam"
    """"adam", "momentum" or "sgd"."""
    shaping: str = "centred_ranks"
    """The shaping of fitnesses; see `ropewalk.population.ranks`."""

    def __post_init__(self) -> None:
        check_number("pairs", self.pairs, Integral, "a whole number", least=1, required=True)
        for name in ("sigma", "learning_rate"):
            first, least, decay = getattr(self, name), getattr(self, f"least_{name}"), getattr(self, f"{name}_decay")
            if not 0 < least <= first:
                raise ValueError(f"{name} must be at least least_{name} and both above 0, not {first} and {least}")
            if not 0 < decay <= 1:
                raise ValueError(f"{name}_decay must be above 0 and at most 1, not {decay}")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay must be 0 or more, not {self.weight_decay}")
        make_optimizer(self.optimizer, self.learning_rate)
        shaping(self.shaping)


class Niche:
    """An active environment with its agent.

    Args:
        number: number of the environment.
        environment: record of the environment.
        parameters: parameters of the agent, float32 of shape (dim,); replaced, but never changed in place.
        learning: how the agent learns.
    """

    def __init__(self, number: int, environment: Environment, parameters: Vector, learning: ESConfig) -> None:
        self.number = number
        self.environment = environment
        self._learning = learning
        self.score: float | None = None
        self.adopt(parameters, None)

    @property
    def pair(self) -> AgentEnvPair:
        """The environment and its agent."""
        return AgentEnvPair(self.number, self.environment, self.parameters, self.score)

    def adopt(self, parameters: Vector, score: float | None) -> None:
        """Replace the agent, and reset noise and learning rate."""
        self.parameters = parameters
        self.score = score
        self.sigma = self._learning.sigma
        self._optimizer = make_optimizer(self._learning.optimizer, self._learning.learning_rate)

    def learn(self, gradient: Vector) -> None:
        """Take a step of the agent; noise and learning rate shrink."""
        learning, optimizer = self._learning, self._optimizer
        self.parameters = optimizer.step(self.parameters, self._with_decay(gradient))
        self.sigma = max(self.sigma * learning.sigma_decay, learning.least_sigma)
        optimizer.learning_rate = max(
            optimizer.learning_rate * learning.learning_rate_decay, learning.least_learning_rate
        )

    def fine_tuned(self, gradient: Vector) -> Vector:
        """Return the agent's parameters after one step along a gradient from any environment; changes nothing."""
        optimizer = make_optimizer(self._learning.optimizer, self._learning.learning_rate)
        return optimizer.step(self.parameters, self._with_decay(gradient))

    def _with_decay(self, gradient: Vector) -> Vector:
        loss = np.multiply(self.parameters, np.float32(self._learning.weight_decay))
        return np.subtract(gradient, loss, out=loss)

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state."""
        return {
            "number": self.number,
            "environment": self.environment,
            "parameters": self.parameters.copy(),
            "score": self.score,
            "sigma": self.sigma,
            "optimizer": self._optimizer.state_dict(),
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any], learning: ESConfig) -> Niche:
        """Restore a niche from `state_dict`."""
        parameters = np.array(state["parameters"], np.float32)
        this = cls(int(state["number"]), state["environment"], parameters, learning)
        this.score = state["score"]
        this.sigma = float(state["sigma"])
        this._optimizer.load_state_dict(state["optimizer"])
        return this
