"""The default generators of torch that a model draws from: the CPU's, and those of the GPUs its tensors are on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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


def equal_states(one: States, other: States) -> bool:
    """Whether two sets of states have the same generators in the same states."""
    return one.keys() == other.keys() and all(torch.equal(state, other[device]) for device, state in one.items())
