"""Rates of calls in the graph of a program, from two looks at its counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

_SMOOTHING = 0.5
"""Weight of the newest rate in the moving average that is shown."""


class CallRates:
    """Adds `calls_per_s`, a moving average of the calls that were completed, to the nodes of each look at a graph."""

    def __init__(self) -> None:
        self._at = -math.inf
        self._done: dict[str, float] = {}
        self._rates: dict[str, float] = {}

    def add(self, data: Mapping[str, Any], at: float) -> dict[str, Any]:
        """Return the data with rates; nodes that were seen for the first time have none.

        Args:
            data: of the panel "graph".
            at: Unix time in seconds of the look.
        """
        nodes = cast("Sequence[Mapping[str, Any]]", data.get("nodes", ()))
        elapsed = at - self._at
        done = {str(node.get("name", "")): float(node.get("calls_done", 0)) for node in nodes}
        if elapsed > 0:
            for name, now in done.items():
                if name in self._done:
                    rate = max(0.0, now - self._done[name]) / elapsed
                    self._rates[name] = rate + (1 - _SMOOTHING) * (self._rates.get(name, rate) - rate)
            self._at, self._done = at, done
        rated = [
            {**node, "calls_per_s": self._rates[name]}
            if (name := str(node.get("name", ""))) in self._rates
            else {**node}
            for node in nodes
        ]
        return {**data, "nodes": rated}


__all__ = ["CallRates"]
