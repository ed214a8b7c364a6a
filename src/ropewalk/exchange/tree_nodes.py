"""Nodes of trees without their children, as functions from children to node; picklable, and hashable as keys."""

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
    types: tuple[type, ...]
    """True equals 1 as a key, but is of another type."""

    def __call__(self, values: list[Any]) -> Any:
        return self.kind(zip(self.keys, values, strict=True))


class DataclassNode(NamedTuple):
    """A dataclass."""

    kind: Any
    names: tuple[str, ...]

    def __call__(self, values: list[Any]) -> Any:
        return self.kind(**dict(zip(self.names, values, strict=True)))
