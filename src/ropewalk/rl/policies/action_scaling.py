"""`ActionScaling`: between canonical actions, -1 to 1 in each entry, and those within an environment's bounds.

Policies of SAC and TD3 choose canonical actions and return scaled ones, so blocks, replay and recorded data hold
actions as the environment takes them. Their learners bring the actions of a batch back to canonical ones, which are all
that critics and losses see. So a data set needs no conversion, and target entropies do not depend on the bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.environments.spec import Array, ContinuousAction, DiscreteAction, EnvironmentSpec

Floats: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class ActionScaling:
    """The affine map of canonical actions to those of an environment.

    Attributes:
        centre: middle of the bounds, shape (A,).
        half: half of their distance, shape (A,).
    """

    centre: Floats
    half: Floats

    @classmethod
    def for_spec(cls, spec: EnvironmentSpec, agent: str) -> ActionScaling:
        """Return the scaling for an environment.

        Args:
            spec: observations and actions of the environment, by shape and type.
            agent: is named in errors.

        Raises:
            ValueError: actions are not continuous, or their bounds are not finite or not apart.
        """
        action = spec.action
        if not isinstance(action, ContinuousAction):
            instead = "DQN or PPO" if isinstance(action, DiscreteAction) else "PPO or IMPALA"
            raise ValueError(
                f"{agent} chooses continuous actions, but this environment takes {action}; use {instead} instead"
            )
        for low, high in zip(action.low, action.high, strict=True):
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ValueError(
                    f"{agent} needs finite bounds of actions, each low below its high, but they are {action.low} and "
                    f"{action.high}; gymnasium.wrappers.TransformAction gives an environment a Box with bounds"
                )
        low, high = np.array(action.low, np.float64), np.array(action.high, np.float64)
        return cls(((low + high) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32))

    def to_environment(self, canonical: Floats) -> Floats:
        """Return actions within the bounds, shape (..., A)."""
        return (self.centre + self.half * canonical).astype(np.float32, copy=False)

    def to_canonical(self, action: Array) -> Floats:
        """Return actions within -1 to 1, shape (..., A); those outside of the bounds are taken as at the bounds."""
        canonical = (np.asarray(action, np.float32) - self.centre) / self.half
        return np.clip(canonical, -1, 1).astype(np.float32, copy=False)


__all__ = ["ActionScaling"]
