"""Activation functions by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from ropewalk.near_names import instead_of

ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


def activation(name: str) -> nn.Module:
    """Make the activation function of that name.

    Raises:
        ValueError: there is none of that name.
    """
    if name in ACTIVATIONS:
        return ACTIVATIONS[name]()
    raise ValueError(f"there is no activation {name!r}{instead_of(name, ACTIVATIONS)}")


__all__ = ["ACTIVATIONS", "activation"]
