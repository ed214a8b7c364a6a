"""`Transitions`: a batch of single transitions as tensors, with canonical actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ropewalk.rl.environments.spec import Array, observation_of
from ropewalk.rl.networks.torso import ObservationTensor
from ropewalk.rl.policies.action_scaling import ActionScaling


@dataclass(frozen=True, slots=True)
class Transitions:
    """B transitions.

    Attributes:
        observation: shape (B, ...).
        action: canonical, shape (B, A).
        reward: over n steps, shape (B,).
        discount: the complete factor of the bootstrap value, shape (B,).
        next_observation: shape (B, ...).
        weights: what each counts in means, shape (B,); None: all count 1.
    """

    observation: ObservationTensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_observation: ObservationTensor
    weights: Tensor | None = None


def transitions_of(
    columns: Mapping[str, Array], scaling: ActionScaling, device: torch.device, weights: Array | None = None
) -> Transitions:
    """Return the columns of a batch, as `NStepAdder` makes them, and weights as tensors on a device."""
    return Transitions(
        observation=observation_tensor(columns, "observation", device),
        action=torch.as_tensor(scaling.to_canonical(columns["action"]), device=device),
        reward=as_tensor(columns["reward"], device),
        discount=as_tensor(columns["discount"], device),
        next_observation=observation_tensor(columns, "next_observation", device),
        weights=None if weights is None else as_tensor(weights, device),
    )


def observation_tensor(columns: Mapping[str, Array], prefix: str, device: torch.device) -> ObservationTensor:
    """Return observations of a batch as a tensor, or as several by name."""
    observation = observation_of(columns, prefix)
    if isinstance(observation, dict):
        return {name: as_tensor(array, device) for name, array in observation.items()}
    return as_tensor(observation, device)


def as_tensor(array: Array, device: torch.device) -> Tensor:
    """Return an array as a tensor; torch warns of arrays that may not be written to, so these are copied."""
    return torch.as_tensor(array if array.flags.writeable else np.array(array), device=device)


__all__ = ["Transitions", "as_tensor", "observation_tensor", "transitions_of"]
