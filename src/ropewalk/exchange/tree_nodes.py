"""Nodes of trees without their children, each a function that makes the node of them; they can travel, and be keys."""

from __future__ import annotations

from typing import Any, NamedTuple


class SequenceNode(NamedTuple):
    """A list, a tuple or a named tuple."""

    kind: Any

    def __call__(self, values: list[Any]) -> Any:
        return self.kind(*values) if hasattr(self.kind, "_fields") else self.kind(values)  # a named tuple


class DictNode(NamedTuple):
    """A dictionary."""

    kind: Any
    keys: tuple[Any, ...]
    #: True is no other key than 1, but of another type.
    types: tuple[type, ...]

    def __call__(self, values: list[Any]) -> Any:
        return self.kind(zip(self.keys, values, strict=True))


class DataclassNode(NamedTuple):
    """A dataclass."""

    kind: Any
    names: tuple[str, ...]

    def __call__(self, values: list[Any]) -> Any:
        return self.kind(**dict(zip(self.names, values, strict=True)))
