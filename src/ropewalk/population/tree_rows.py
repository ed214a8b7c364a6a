"""Where the members of a tree stand in a picture of it."""

from __future__ import annotations

from collections.abc import Iterable


def tree_rows(parents: Iterable[tuple[int, int | None]]) -> dict[int, int]:
    """Return the row of each member: below its parent, after all descendants of its younger siblings.

    So the line from a parent down to a child only crosses lines of members that were born later.

    Args:
        parents: each member with its parent, None for a root; in the order of their births.

    Example:
        >>> tree_rows([(0, None), (1, 0), (2, 0), (3, 1)])
        {0: 0, 2: 1, 1: 2, 3: 3}
    """
    children: dict[int | None, list[int]] = {}
    for number, parent in parents:
        children.setdefault(parent, []).append(number)
    rows: dict[int, int] = {}
    waiting = list(children.get(None, []))
    while waiting:
        number = waiting.pop()
        rows[number] = len(rows)
        waiting += children.get(number, [])  # the youngest is next
    return rows
