"""`ReplayLife`: which life of a replay server answered, and how that life began."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplayLife:
    """Identifies one life of a replay server: another one follows when its process was lost.

    Attributes:
        server: name of the server; the same in all of its lives.
        id: differs in each life.
        restored: whether it began with the items of a checkpoint; otherwise it began empty.
        sizes: by table, the number of items with which it began.
    """

    server: str
    id: str
    restored: bool
    sizes: Mapping[str, int]

    def describe(self) -> str:
        """How it began, for people."""
        if not self.restored:
            return f"{self.server} was lost and came back empty"
        sizes = ", ".join(f"{size} in {table!r}" for table, size in self.sizes.items())
        return f"{self.server} was lost and came back restored from its last checkpoint, with these items: {sizes}"


__all__ = ["ReplayLife"]
