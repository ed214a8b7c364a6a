"""Trees of values: the inputs and outputs of a model may be tuples, lists, dictionaries, named tuples or dataclasses.

`torch`'s own trees are private, and support dataclasses only if they are registered. Other tree walkers have other
purposes: `exchange.tensor_codec` takes each message apart and must be fast, `calls.trees` works without torch and
reports where in an argument two calls differ, and `program.handle` looks into partial functions and preserves shared
objects.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from ropewalk.exchange.tree_nodes import DataclassNode, DictNode, SequenceNode

_Rebuild = Callable[[list[Any]], Any]
"""Makes a node of a tree from its children."""


@dataclass(frozen=True, slots=True)
class Structure:
    """A tree without its leaves."""

    rebuild: _Rebuild | None
    """Makes the node from its children; None for a leaf."""
    children: tuple[tuple[str, Structure], ...] = ()
    """The children, each with its name in a path."""

    @property
    def num_leaves(self) -> int:
        """The number of leaves."""
        return 1 if self.rebuild is None else sum(child.num_leaves for _, child in self.children)

    def paths(self, prefix: str = "") -> Iterator[str]:
        """Yield the path of every leaf, in order: "batch.ids", "states.0"."""
        if self.rebuild is None:
            yield prefix
        for name, child in self.children:
            yield from child.paths(f"{prefix}.{name}" if prefix else name)

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Return the tree with these leaves."""
        remaining = iter(leaves)
        return self._unflatten(remaining)

    def _unflatten(self, remaining: Iterator[Any]) -> Any:
        if self.rebuild is None:
            return next(remaining)
        return self.rebuild([child._unflatten(remaining) for _, child in self.children])

    def same_shape_as(self, other: Structure) -> bool:
        """Return whether both trees have the same branches, with the same names."""
        if (self.rebuild is None) != (other.rebuild is None) or len(self.children) != len(other.children):
            return False
        pairs = zip(self.children, other.children, strict=True)
        return all(name == with_name and child.same_shape_as(to) for (name, child), (with_name, to) in pairs)


LEAF = Structure(None)


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """Return the leaves of a tree, from left to right, and its structure."""
    leaves: list[Any] = []
    return leaves, _structure(tree, leaves)


def _structure(tree: Any, leaves: list[Any]) -> Structure:
    if isinstance(tree, torch.Size):  # a tuple, but one value
        leaves.append(tree)
        return LEAF
    if isinstance(tree, dict):  # also HuggingFace's ModelOutput, which is built from a dictionary
        table = cast("dict[Any, Any]", tree)
        keys = list(table)
        children = tuple((str(key), _structure(table[key], leaves)) for key in keys)
        return Structure(DictNode(type(table), tuple(keys), tuple(map(type, keys))), children)
    if isinstance(tree, list | tuple):
        row = cast("Sequence[Any]", tree)
        children = tuple((str(index), _structure(value, leaves)) for index, value in enumerate(row))
        return Structure(SequenceNode(list if isinstance(row, list) else type(row)), children)
    record: Any = type(tree)  # pyright: ignore[reportUnknownVariableType]
    if dataclasses.is_dataclass(cast(object, record)):
        names = [field.name for field in dataclasses.fields(tree) if field.init]
        children = tuple((name, _structure(getattr(tree, name), leaves)) for name in names)
        return Structure(DataclassNode(record, tuple(names)), children)
    leaves.append(tree)
    return LEAF


def tensors_of(tree: Any) -> list[Tensor]:
    """Return the tensors of a value, from left to right."""
    if isinstance(tree, Tensor):
        return [tree]
    return [leaf for leaf in flatten(tree)[0] if isinstance(leaf, Tensor)]


def map_tensors(change: Callable[[Tensor], Any], tree: Any) -> Any:
    """Return the same value with each tensor replaced by the result of `change`."""
    if isinstance(tree, Tensor):
        return change(tree)
    leaves, structure = flatten(tree)
    return structure.unflatten([change(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves])
