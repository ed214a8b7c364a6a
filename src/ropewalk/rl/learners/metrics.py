"""`MetricMeans`: numbers for the log, over the gradient steps of one update."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


class MetricMeans:
    """Means of metrics; tensors are read once, at the end, so that a device is not waited for in each step."""

    def __init__(self) -> None:
        self._metrics: list[Mapping[str, Tensor | float]] = []

    def add(self, metrics: Mapping[str, Tensor | float]) -> None:
        """Take in the metrics of one step: scalars, with the same names each time."""
        self._metrics.append(metrics)

    def means(self) -> dict[str, float]:
        """Return the mean of each metric; {} if there was no step."""
        names = self._metrics[0] if self._metrics else ()
        return {name: sum(float(metrics[name]) for metrics in self._metrics) / len(self._metrics) for name in names}


__all__ = ["MetricMeans"]
