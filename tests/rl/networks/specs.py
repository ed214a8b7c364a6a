"""Specs of environments, for tests of networks."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ropewalk.rl.environments.spec import ArraySpec, ContinuousAction, DiscreteAction, EnvironmentSpec

LEFT_OR_RIGHT = DiscreteAction(2)
VECTOR = EnvironmentSpec(ArraySpec((4,)), LEFT_OR_RIGHT)
NUMBERED = EnvironmentSpec(ArraySpec((), "int64", 1, 5), LEFT_OR_RIGHT)
IMAGE = EnvironmentSpec(ArraySpec((36, 44, 3), "uint8", 0, 255), LEFT_OR_RIGHT)
NAMED = EnvironmentSpec(
    {"speed": ArraySpec((3,)), "cell": ArraySpec((), "int64", 0, 3), "image": ArraySpec((2, 6, 6), "uint8", 0, 255)},
    ContinuousAction((-1.0,), (1.0,)),
)


def random_array(spec: ArraySpec, *leading: int, seed: int = 0) -> Tensor:
    rng = np.random.default_rng(seed)
    shape = (*leading, *spec.shape)
    if spec.dtype == "float32":
        return torch.from_numpy(rng.standard_normal(shape, np.float32))
    return torch.from_numpy(rng.integers(int(spec.low), int(spec.high) + 1, shape).astype(spec.dtype))


def random_observation(spec: EnvironmentSpec, *leading: int, seed: int = 0) -> Tensor | dict[str, Tensor]:
    if isinstance(spec.observation, ArraySpec):
        return random_array(spec.observation, *leading, seed=seed)
    return {name: random_array(entry, *leading, seed=seed) for name, entry in spec.observation.items()}
