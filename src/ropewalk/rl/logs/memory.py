"""`MemoryLogger`: rows in lists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping


class MemoryLogger:
    """Keeps all rows.

    Attributes:
        rows: the rows of each label, in order.
    """

    def __init__(self) -> None:
        self.rows: defaultdict[str, list[dict[str, float | int | str | None]]] = defaultdict(list)

    def __repr__(self) -> str:
        return f"<MemoryLogger of {sum(map(len, self.rows.values()))} rows>"

    def __call__(self, label: str, row: Mapping[str, float | int | str | None]) -> None:
        """See `Logger`."""
        self.rows[label].append(dict(row))


__all__ = ["MemoryLogger"]
