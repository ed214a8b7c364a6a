"""`ModuleArrays`: the weights of a torch module as named numpy arrays, which is how they are published and loaded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import nn

from ropewalk.rl.environments.spec import Array


class ModuleArrays:
    """Reads and sets a module's parameters and buffers, whose memory it looks up once: to list them takes most of it.

    It follows what changes in place, as optimizers and `load_state_dict` do it. It does not follow a module that is
    moved to another device or dtype.

    Args:
        module: whose weights they are.
    """

    def __init__(self, module: nn.Module) -> None:
        self._of = type(module).__name__
        self._tensors = dict(module.state_dict())
        self._arrays = {name: tensor.numpy() for name, tensor in self._tensors.items() if tensor.device.type == "cpu"}

    def copied(self) -> dict[str, Array]:
        """Return copies by name."""
        return {
            name: self._arrays[name].copy() if name in self._arrays else tensor.cpu().numpy()
            for name, tensor in self._tensors.items()
        }

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Set them, on the CPU; names and shapes have to be those of `copied`.

        Of a module on the device "meta", names and shapes are compared alone.

        Raises:
            ValueError: names differ, and the message has those that are missing and those that are too many; or a shape
                does.
        """
        own = {name: tensor for name, tensor in self._tensors.items() if name in self._arrays or tensor.is_meta}
        if own.keys() != arrays.keys():
            missing, extra = sorted(own.keys() - arrays.keys()), sorted(arrays.keys() - own.keys())
            raise ValueError(
                f"the arrays are not those of this {self._of}: missing {missing}, too many {extra}; "
                "the policy's network has to be made by the same settings as the learner's"
            )
        for name, tensor in own.items():
            if tuple(tensor.shape) != arrays[name].shape:
                raise ValueError(
                    f"{name} of this {self._of} has the shape {tuple(tensor.shape)}, and what is loaded has "
                    f"{arrays[name].shape}"
                )
        for name, array in self._arrays.items():
            np.copyto(array, arrays[name])


__all__ = ["ModuleArrays"]
