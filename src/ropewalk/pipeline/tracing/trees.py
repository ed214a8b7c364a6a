"""Trees of values: what a model takes and returns may be tuples, lists, dictionaries, named tuples or dataclasses.

`torch`'s own trees are private, and know dataclasses only if they are registered. Other walkers have other jobs:
`exchange.tensor_codec` takes each message apart and must be fast, `calls.trees` goes without torch and says where in an
argument two calls differ, and `program.handle` looks into partial functions, and keeps what is shared shared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from ropewalk.exchange.tree_nodes import DataclassNode, DictNode, SequenceNode

#: What `flatten` makes of anything: a leaf takes the next value, the others rebuild their children first.
_Rebuild = Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class Structure:
    """A tree without its leaves."""

    #: Makes the node of its children; None: this is a leaf.
    rebuild: _Rebuild | None
    #: The children, each with its name in a path.
    children: tuple[tuple[str, Structure], ...] = ()

    @property
    def num_leaves(self) -> int:
        """How many leaves the tree has."""
        return 1 if self.rebuild is None else sum(child.num_leaves for _, child in self.children)

    def paths(self, prefix: str = "") -> Iterator[str]:
        """The path of every leaf, in order: "batch.ids", "states.0"."""
        if self.rebuild is None:
            yield prefix
        for name, child in self.children:
            yield from child.paths(f"{prefix}.{name}" if prefix else name)

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The tree with these leaves."""
        remaining = iter(leaves)
        return self._unflatten(remaining)

    def _unflatten(self, remaining: Iterator[Any]) -> Any:
        if self.rebuild is None:
            return next(remaining)
        return self.rebuild([child._unflatten(remaining) for _, child in self.children])

    def same_shape_as(self, other: Structure) -> bool:
        """Whether both trees branch alike, with the same names."""
        if (self.rebuild is None) != (other.rebuild is None) or len(self.children) != len(other.children):
            return False
        pairs = zip(self.children, other.children, strict=True)
        return all(name == with_name and child.same_shape_as(to) for (name, child), (with_name, to) in pairs)


LEAF = Structure(None)


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves of a tree, from left to right, and the tree without them."""
    leaves: list[Any] = []
    return leaves, _structure(tree, leaves)


def _structure(tree: Any, leaves: list[Any]) -> Structure:
    if isinstance(tree, torch.Size):  # a tuple, and one value
        leaves.append(tree)
        return LEAF
    if isinstance(tree, dict):  # also HuggingFace's ModelOutput, which makes itself of a dictionary
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
