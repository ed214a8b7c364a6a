"""Rates of calls in the graph of a program, from two looks at its counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

_SMOOTHING = 0.5
"""Weight of the newest rate in the moving average that is shown."""
_LEAST_PER_S = 0.01
"""Where nothing is called any more, the average ends here, and not after hundreds of looks."""

Part = Mapping[str, Any]
"""A node or an edge of the panel."""


class CallRates:
    """Adds `calls_per_s` to nodes and edges of each look at a graph.

    It is a moving average: of a node, of the calls that it completed; of an edge, of those that its caller made.
    """

    def __init__(self) -> None:
        self._at = -math.inf
        self._counts: dict[tuple[str, ...], float] = {}
        self._rates: dict[tuple[str, ...], float] = {}

    def add(self, data: Mapping[str, Any], at: float) -> dict[str, Any]:
        """Return the data with rates; nodes and edges that were seen for the first time have none.

        Args:
            data: of the panel "graph".
            at: Unix time in seconds of the look.
        """
        nodes, edges = (cast("Sequence[Part]", data.get(name, ())) for name in ("nodes", "edges"))
        counts = {_key(node): float(node.get("calls_done", 0)) for node in nodes}
        counts |= {_key(edge): float(edge.get("calls", 0)) for edge in edges}
        elapsed = at - self._at
        if elapsed > 0:
            for key, now in counts.items():
                if key in self._counts:
                    rate = max(0.0, now - self._counts[key]) / elapsed  # a process that was restarted counts from 0
                    average = rate + (1 - _SMOOTHING) * (self._rates.get(key, rate) - rate)
                    self._rates[key] = average if rate or average >= _LEAST_PER_S else 0.0
            self._at, self._counts = at, counts
        return {**data, "nodes": [self._rated(node) for node in nodes], "edges": [self._rated(edge) for edge in edges]}

    def _rated(self, part: Part) -> dict[str, Any]:
        rate = self._rates.get(_key(part))
        return {**part} if rate is None else {**part, "calls_per_s": rate}


def _key(part: Part) -> tuple[str, ...]:
    """Return what identifies a node or an edge."""
    return (str(part["name"]),) if "name" in part else (str(part.get("from", "")), str(part.get("to", "")))


__all__ = ["CallRates"]
