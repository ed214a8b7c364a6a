"""Networks without memory as functions of arrays, for policies."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from ropewalk.rl.environments.spec import Observation
from ropewalk.rl.policies.numpy_forward import Forward, numpy_forward


def memoryless_forward(network: nn.Module) -> Forward:
    """Return a function that maps observations (N, ...) to what a network returns for them, as arrays.

    It follows weights that are loaded into the network in place. Networks that numpy can evaluate are evaluated by
    numpy, others by torch.

    Args:
        network: maps observations (N, ...) to one tensor.
    """
    forward = numpy_forward(network)
    if forward is not None:
        return forward

    def by_torch(observation: Observation) -> object:
        with torch.inference_mode():
            if isinstance(observation, dict):
                tensors = network({name: torch.tensor(array) for name, array in observation.items()})
            else:
                tensors = network(torch.tensor(observation))
            return cast("torch.Tensor", tensors).numpy()

    return by_torch


__all__ = ["memoryless_forward"]
