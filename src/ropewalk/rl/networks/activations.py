"""Activation functions by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

from torch import nn

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
    near = difflib.get_close_matches(name, ACTIVATIONS, 1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise ValueError(f"there is no activation {name!r}{hint} There are {', '.join(ACTIVATIONS)}")


__all__ = ["ACTIVATIONS", "activation"]
