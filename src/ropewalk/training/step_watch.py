"""`StepWatch`: what a trainer notes of its steps while it admits them, and shows of those that are done."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.pipeline.step_metrics import StepMetrics
from ropewalk.pipeline.tracing.trees import tensors_of
from ropewalk.training.loss_history import LossHistory
from ropewalk.training.observing import TrainingObserver
from ropewalk.training.progress import ProgressLine
from ropewalk.training.step_handle import StepHandle

_MOST = 256
"""The number of steps that wait to be looked at, the newest."""


class LossWatch:
    """Looks at the losses of a training until one of them is not finite, and says so once.

    Losses of stage processes arrive on the CPU, where looking costs a microsecond each. Those of an inline trainer on a
    GPU are looked at when the trainer drains: before that, it would have to wait for the GPU.

    Args:
        options: of the training; if its policy for NaN is not "pass", nothing is said.
    """

    def __init__(self, options: TrainingOptions) -> None:
        self._options = options
        self._is_over = options.nan != "pass"
        self._steps: deque[tuple[int, StepMetrics]] = deque(maxlen=_MOST)

    def put(self, step: int, metrics: StepMetrics) -> None:
        """Take a step that was admitted.

        Args:
            step: its number, from 0.
            metrics: gets its losses when they are known.
        """
        if not self._is_over:
            self._steps.append((step, metrics))

    def look(self, say: Callable[[str], object], *, waits: bool = False) -> None:
        """Look at the losses that have arrived.

        Args:
            say: called, once, with what to tell the user.
            waits: whether losses that are on another device are looked at as well.
        """
        while self._steps and self._steps[0][1].done:
            step, metrics = self._steps[0]
            losses = metrics.losses
            if not waits and any(loss.device.type != "cpu" for loss in losses):
                return
            self._steps.popleft()
            values = [float(loss) for loss in losses]
            odd = [index for index, value in enumerate(values) if not math.isfinite(value)]
            if odd:
                self._is_over = True
                self._steps.clear()
                say(self._in_words(step, odd, values))

    def _in_words(self, step: int, odd: list[int], values: list[float]) -> str:
        which = (
            f"micro-batch {odd[0]} of {len(values)}" if len(odd) == 1 else f"{len(odd)} of {len(values)} micro-batches"
        )
        clip, autocast = self._options.clip_norm, self._options.autocast
        remedies = ["a lower learning rate"]
        remedies += ["clip_norm=1.0"] if clip is None else [f"a clip_norm below {clip:g}"]
        remedies += [] if autocast is None else [f"to train without autocast={autocast}"]
        return (
            f"the loss of step {step} is {values[odd[0]]:g} in {which}, and after its update the "
            f"weights will not be finite either. Look at its data, and at logarithms and divisions in the loss; "
            f'try {" or ".join(remedies)}. nan="skip" leaves out updates whose gradients are not finite, nan="raise" '
            f"ends the training at the first. This is said once"
        )


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


__all__ = ["LossWatch", "StepWatch"]
