"""Which step the loss of a micro-batch belongs to. Pure.

With a flush, each step numbers its micro-batches from 0 again, and collects its own losses. Without, numbers count over
steps, and a loss may arrive with the outcome of a later step.
"""

from __future__ import annotations

from ropewalk.pipeline.step_metrics import StepMetrics
from ropewalk.training.assignment import AdmissionOutcome


class StepLosses:
    """Passes losses on to the metrics of their steps.

    Args:
        flushes: whether the schedule finishes each step before the next one.
    """

    def __init__(self, *, flushes: bool) -> None:
        self._flushes = flushes
        self._expected: dict[int, tuple[StepMetrics, int]] = {}
        """By micro-batch, the step that its loss belongs to, and its index there; empty with flushes."""

    def expect(self, metrics: StepMetrics | None, first: int, num: int) -> None:
        """Note that the micro-batches from number `first` on belong to a step."""
        if not self._flushes and metrics is not None:
            self._expected |= {first + index: (metrics, index) for index in range(num)}

    def arrived(self, metrics: StepMetrics | None, outcome: AdmissionOutcome) -> None:
        """Pass on what came with a worker's answer to the admission of a step."""
        if outcome.norm is not None and metrics is not None and self._flushes:
            metrics.gradient_norm, metrics.is_skipped = outcome.norm, outcome.is_skipped
        if outcome.values is not None:  # last, since a look in another thread takes a step that has all losses as done
            values = outcome.values.unbind()
            for number, value, weight in zip(outcome.micro_batches, values, outcome.weights, strict=True):
                its_step, index = self._expected.pop(number, (metrics, number))
                assert its_step is not None
                its_step.put(index, value, weight)

    def clear(self) -> None:
        """Expect no losses any more: all steps that are not completed are admitted again."""
        self._expected.clear()
