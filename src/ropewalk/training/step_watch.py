"""`StepWatch`: what a trainer notes of its steps while it admits them, and shows of those that are done."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.pipeline.step_metrics import StepMetrics
from ropewalk.pipeline.tracing.trees import tensors_of
from ropewalk.training.loss_history import LossHistory
from ropewalk.training.loss_watch import LossWatch
from ropewalk.training.observing import TrainingObserver
from ropewalk.training.progress import ProgressLine
from ropewalk.training.step_handle import StepHandle


class StepWatch:
    """Counts samples, keeps losses, warns of those that are not finite, prints progress, and tells the run.

    Args:
        options: of the training.
        progress: the line to print; None prints nothing.
        observer: is told of the steps that are done.
    """

    def __init__(self, options: TrainingOptions, progress: ProgressLine | None, observer: TrainingObserver) -> None:
        self.losses = LossHistory()
        self._progress = progress
        self._observer = observer
        self._loss_watch = LossWatch(options)
        self._waiting: deque[tuple[StepHandle, int]] = deque()
        """Steps that are to be shown when they are done, with their numbers of samples."""
        self._num_samples = self._num_steps = 0

    @property
    def samples_per_step(self) -> float:
        """The mean number of samples of a mini-batch; 0 if its inputs did not pass through this process."""
        return self._num_samples / max(1, self._num_steps)

    def put(self, handle: StepHandle, metrics: StepMetrics, x: Any) -> None:
        """Note a step that was admitted.

        Args:
            handle: of the step.
            metrics: gets its losses when they are known.
            x: the model's input, as the trainer takes it; None if stages read their own data.
        """
        num_samples = next((tensor.shape[0] for tensor in tensors_of(x) if tensor.dim()), 0)
        self._num_samples += num_samples
        self._num_steps += 1
        self.losses.put(handle.step, metrics, num_samples, time.time())
        self._loss_watch.put(handle.step, metrics)
        if self._progress is not None or self._observer.is_on:
            self._waiting.append((handle, num_samples))

    def look(self, say: Callable[[str], object], *, waits: bool = False) -> None:
        """Show the steps that are done.

        Args:
            say: called with what to tell the user.
            waits: whether losses that are on another device are looked at as well.
        """
        self._loss_watch.look(say, waits=waits)
        while self._waiting and self._waiting[0][0].done:
            handle, num_samples = self._waiting.popleft()
            if self._progress is not None:
                is_last = not (self._waiting and self._waiting[0][0].done)
                self._progress.put(handle.step, float(handle.metrics().loss), num_samples, is_last=is_last)
            self._observer.step(handle)


__all__ = ["StepWatch"]
