"""`StepHandle`: a step that was admitted, and may still be under way."""

from __future__ import annotations

from collections.abc import Callable

from ropewalk.pipeline.step_metrics import StepMetrics


class StepHandle:
    """What `Trainer.step` returns at once.

    Attributes:
        step: which step of the run this is, from 0.
    """

    def __init__(self, step: int, metrics: StepMetrics, wait: Callable[[], None]) -> None:
        self.step = step
        self._metrics = metrics
        self._wait = wait

    def __repr__(self) -> str:
        return f"<step {self.step}: {self._metrics}>"

    @property
    def done(self) -> bool:
        """Whether the losses of all its micro-batches are known."""
        return self._metrics.done

    def metrics(self) -> StepMetrics:
        """The losses; waits for them.

        A schedule without a flush finishes a step with later ones: stages then go on with what was admitted, and wait
        for more afterwards. Where that does not give the losses it waits for a drain.

        Raises:
            StageFailed: a stage raised, in this step or an earlier one.
            StageLost: a stage was lost and cannot be replaced.
        """
        if not self._metrics.done:
            self._wait()
        return self._metrics
