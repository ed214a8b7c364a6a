"""The weights of a torch module as named numpy arrays, which is how they are published and loaded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from ropewalk.rl.environments.spec import Array


def arrays_of(module: nn.Module) -> dict[str, Array]:
    """Return copies of the module's parameters and buffers by name."""
    return {name: np.array(tensor.cpu().numpy()) for name, tensor in module.state_dict().items()}


@torch.no_grad()
def load_arrays(module: nn.Module, arrays: Mapping[str, Array]) -> None:
    """Set the module's parameters and buffers, in place; names and shapes have to be those of `arrays_of`.

    Raises:
        ValueError: names differ; the message has those that are missing and those that are too many.
    """
    tensors = module.state_dict()
    if tensors.keys() != arrays.keys():
        missing, extra = sorted(tensors.keys() - arrays.keys()), sorted(arrays.keys() - tensors.keys())
        raise ValueError(
            f"the arrays are not those of this {type(module).__name__}: missing {missing}, too many {extra}; "
            "the policy's network has to be made by the same settings as the learner's"
        )
    for name, tensor in tensors.items():
        # Not torch.from_numpy: published arrays may be read-only, which it warns of.
        tensor.copy_(torch.tensor(arrays[name]))


__all__ = ["arrays_of", "load_arrays"]
