"""The default generators that a model draws from: torch's (the CPU's and those of its GPUs), Python's and numpy's."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

States = Mapping[torch.device, Tensor]
"""Generator states by device; all states are in the CPU's memory."""


def state_of(device: torch.device) -> Tensor:
    """Return the state of the default generator of a device."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_state_of(device: torch.device, state: Tensor) -> None:
    """Set the state of the default generator of a device."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def states_for(tensors: Iterable[Tensor]) -> States:
    """Return the states of the generators that operations on these tensors may draw from."""
    devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    return {device: state_of(device) for device in (torch.device("cpu"), *sorted(devices, key=str))}


def set_states(states: States) -> None:
    """Set the generators to these states."""
    for device, state in states.items():
        set_state_of(device, state)


class OtherStates(NamedTuple):
    """The states of the default generators of Python and numpy; they can be compared."""

    python: tuple[Any, ...]
    numpy: tuple[Any, ...] | None
    """None: numpy was not imported."""

    @classmethod
    def now(cls) -> OtherStates:
        """Return the present states."""
        numpy: Any = sys.modules.get("numpy")
        if numpy is None:
            return cls(random.getstate(), None)
        name, keys, *rest = numpy.random.get_state()
        return cls(random.getstate(), (name, tuple(keys.tolist()), *rest))

    def set(self) -> None:
        """Set the generators to these states."""
        random.setstate(self.python)
        numpy: Any = sys.modules.get("numpy")
        if self.numpy is not None:
            numpy.random.set_state(self.numpy)


def equal_states(one: States, other: States) -> bool:
    """Whether two sets of states have the same generators in the same states."""
    return one.keys() == other.keys() and all(torch.equal(state, other[device]) for device, state in one.items())
