"""The tensors inside values: what stages pass to each other may be any tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ropewalk.pipeline.tracing.trees import flatten


def tensors_of(tree: Any) -> list[Tensor]:
    """The tensors of a value, from left to right."""
    if isinstance(tree, Tensor):
        return [tree]
    return [leaf for leaf in flatten(tree)[0] if isinstance(leaf, Tensor)]


def map_tensors(change: Callable[[Tensor], Any], tree: Any) -> Any:
    """The same value with each tensor replaced."""
    if isinstance(tree, Tensor):
        return change(tree)
    leaves, structure = flatten(tree)
    return structure.unflatten([change(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves])
