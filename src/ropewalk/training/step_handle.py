"""`StepHandle`: an admitted step that may still be under way."""

from __future__ import annotations

from collections.abc import Callable

from ropewalk.pipeline.step_metrics import StepMetrics
from ropewalk.user_frames import user_frames_only


class StepHandle:
    """The handle that `Trainer.step` returns immediately.

    Attributes:
        step: the number of the step in the run, from 0.
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

    @user_frames_only
    def metrics(self) -> StepMetrics:
        """Return the losses, once they are known.

        With a schedule without a flush, later steps finish this one: the stages first continue with the admitted steps,
        then wait for more. If that does not give the losses, this method waits for a drain.

        Raises:
            StageFailed: a stage raised, in this step or an earlier one.
            StageLost: a stage was lost and cannot be replaced.
        """
        if not self._metrics.done:
            self._wait()
        return self._metrics
