"""Facts about a call of ATen from its schema."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten: Any = torch.ops.aten
_Overload: Any = type(aten.add.Tensor)  # pyright: ignore[reportUnknownVariableType]


def writes(node: fx.Node) -> bool:
    """Return whether a call of ATen writes in place, according to its schema."""
    target: Any = node.target
    return isinstance(target, _Overload) and bool(target._schema.is_mutable)


def draws(node: fx.Node) -> bool:
    """Return whether a call of ATen draws random numbers."""
    target: Any = node.target
    return isinstance(target, _Overload) and torch.Tag.nondeterministic_seeded in target.tags


def function_name(node: fx.Node) -> str:
    """Return the name of the function that a node calls: "add", "batch_norm"."""
    target: Any = node.target
    if node.op == "get_attr":
        return "constant"
    if isinstance(target, str):
        return target
    if isinstance(target, _Overload):
        return str(target).split(".")[1]
    return str(getattr(target, "__name__", type(target).__name__))
