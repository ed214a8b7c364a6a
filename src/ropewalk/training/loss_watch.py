"""`LossWatch`: looks at the losses that arrive, and says once if one of them is NaN or infinite.

Losses of stage processes arrive on the CPU, where looking costs a microsecond each. Those of an inline trainer on a GPU
are looked at when the trainer drains: before that, it would have to wait for the GPU.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.pipeline.step_metrics import StepMetrics

_MOST = 256
"""The number of steps that wait to be looked at, the newest."""


class LossWatch:
    """Looks at the losses of a training until one of them is not finite.

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


__all__ = ["LossWatch"]
