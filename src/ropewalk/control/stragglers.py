"""Which of several processes that do the same are remarkably slower than the others. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Sequence

_LEAST_MEMBERS = 3
"""Of two, neither is the odd one out."""


def stragglers(
    groups: Sequence[Hashable], values: Sequence[float | None], *, times: float = 2.0, least: float = 0.0
) -> list[bool]:
    """Say for each process whether it is far above the median of its group.

    Args:
        groups: what each process belongs to; those of one group do the same.
        values: what is compared, such as seconds for a step or calls that wait; None where that is not known.
        times: a straggler is above this multiple of the median of its group.
        least: and above the median by more than this, in the unit of the values: small numbers differ by chance.

    Returns:
        A flag for each process; groups with fewer than three known values have no stragglers.

    Example:
        >>> stragglers(["actor"] * 4, [1.0, 1.1, 0.9, 7.0])
        [False, False, False, True]
    """
    processes = list(zip(groups, values, strict=True))
    known: dict[Hashable, list[float]] = {}
    for group, value in processes:
        if value is not None:
            known.setdefault(group, []).append(value)
    medians = {group: statistics.median(those) for group, those in known.items() if len(those) >= _LEAST_MEMBERS}
    return [
        value is not None and group in medians and value > times * medians[group] and value - medians[group] > least
        for group, value in processes
    ]
