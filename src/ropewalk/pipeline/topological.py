"""A topological order with a preference."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def topological_order(after: Mapping[T, Collection[T]], key: Callable[[T], Any]) -> list[T]:
    """Return the nodes of a graph such that each comes before those after it (Kahn's algorithm).

    Args:
        after: for each node, those that come after it.
        key: differs between nodes; where there is a choice, the node of the least key comes first.

    Returns:
        All nodes; without those of cycles and what comes after them, if there are cycles.
    """
    waiting = dict.fromkeys(after, 0)
    for ends in after.values():
        for end in ends:
            waiting[end] += 1
    ready = [(key(node), node) for node, count in waiting.items() if not count]
    heapq.heapify(ready)
    order: list[T] = []
    while ready:
        node = heapq.heappop(ready)[1]
        order.append(node)
        for end in after[node]:
            waiting[end] -= 1
            if not waiting[end]:
                heapq.heappush(ready, (key(end), end))
    return order


__all__ = ["topological_order"]
