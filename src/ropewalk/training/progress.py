"""A progress line while a model trains: the step, the loss, and the rates."""

from __future__ import annotations

import time
from collections.abc import Callable

from ropewalk.quantities import shown_duration


class ProgressLine:
    """Prints the progress of training, at most once in `every_s` seconds, and in the first step.

        step 120: loss 0.2314, 35.2 steps/s, 1126 samples/s
        step 120 of 1000: loss 0.2314, 35.2 steps/s, 1126 samples/s, 25.0 s left

    Rates and the loss cover the steps since the last line, so the first line has no rates. The loss is their mean,
    weighted by samples. The numbers of samples are unknown if processes read their own data: then all steps weigh the
    same, and the line has no rate of samples.

    Args:
        every_s: seconds between lines.
        write: called with each line.
        clock: returns the time in seconds.
        total_steps: number of steps of the whole training; None: it is not known.
    """

    def __init__(
        self,
        every_s: float = 1.0,
        write: Callable[[str], object] = print,
        clock: Callable[[], float] = time.monotonic,
        total_steps: int | None = None,
    ) -> None:
        self._every_s = every_s
        self._write = write
        self._clock = clock
        self._total_steps = total_steps
        self._since_s = clock()
        self._said_any = False
        self._begin()

    def _begin(self) -> None:
        self._num_steps = 0
        self._num_samples = 0.0
        self._weight = 0.0
        self._loss = 0.0

    def put(self, step: int, loss: float, num_samples: float, *, is_last: bool = True) -> None:
        """Record a finished step.

        Args:
            step: its number, from 0.
            loss: the mean over the samples of the mini-batch.
            num_samples: the number of samples in the mini-batch; 0 if it is unknown.
            is_last: False: later steps have finished as well, and are put next; a line would be out of date.
        """
        self._num_steps += 1
        weight = num_samples or 1.0
        self._num_samples += num_samples
        self._weight += weight
        self._loss += loss * weight
        now_s = self._clock()
        elapsed_s = now_s - self._since_s
        if not is_last or (self._said_any and elapsed_s < self._every_s):
            return
        loss = self._loss / self._weight
        rates = ""
        if self._said_any and elapsed_s > 0:  # the first step waits for processes to start: its rate says nothing
            rates = f", {self._num_steps / elapsed_s:.3g} steps/s"
            if self._num_samples:
                rates += f", {self._num_samples / elapsed_s:.4g} samples/s"
            if self._total_steps:
                left_s = max(0, self._total_steps - step - 1) * elapsed_s / self._num_steps
                rates += f", {shown_duration(left_s)} left"
        total = f" of {self._total_steps}" if self._total_steps else ""
        self._write(f"step {step}{total}: loss {loss:.4g}{rates}")
        self._said_any, self._since_s = True, now_s
        self._begin()
