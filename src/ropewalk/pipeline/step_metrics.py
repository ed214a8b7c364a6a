"""What a step of training tells: the loss of each micro-batch, and of all."""

from __future__ import annotations

from torch import Tensor

from ropewalk.pipeline.stages.losses import Loss


class StepMetrics:
    """What is known of one step.

    A executor has all of it when `step` returns, a trainer somewhat later. Schedules without a flush may finish it only
    with later steps, or in a drain.
    """

    def __init__(self, num_pieces: int, loss: Loss) -> None:
        self._found: list[tuple[Tensor, float | None] | None] = [None] * num_pieces
        self._loss = loss
        #: The norm of all gradients before they were clipped, if clipping or a NaN policy asked for it.
        self.gradient_norm: Tensor | None = None
        #: Whether the update was left out, because gradients were NaN or infinite.
        self.is_skipped = False

    def __repr__(self) -> str:
        return f"<StepMetrics: {self}>"

    def __str__(self) -> str:
        num = len(self._found)
        if not self.done:
            return (
                f"{num - self._found.count(None)} of {num} micro-batches have their loss; the others come while the "
                f"step goes on, or with a drain"
            )
        num_odd = sum(not bool(value.isfinite().all()) for value in self.losses)
        odd = f" ({num_odd} of them not finite)" if num_odd else ""
        skipped = ", update left out" if self.is_skipped else ""
        return f"loss {float(self.loss):.6g} over {num} micro-batches{odd}{skipped}"

    def put(self, index: int, value: Tensor, weight: float | None) -> None:
        """Called when the loss of a micro-batch is computed."""
        self._found[index] = value, weight

    @property
    def done(self) -> bool:
        """Whether the losses of all micro-batches are there."""
        return None not in self._found

    @property
    def losses(self) -> tuple[Tensor, ...]:
        """The loss of each micro-batch.

        Raises:
            RuntimeError: not all are `done`.
        """
        return tuple(value for value, _ in self._pieces())

    @property
    def loss(self) -> Tensor:
        """The loss of the step: the sum, or the mean over all samples.

        Raises:
            RuntimeError: not all are `done`.
        """
        return self._loss.over(self._pieces())

    def _pieces(self) -> list[tuple[Tensor, float | None]]:
        if not self.done:
            raise RuntimeError(
                f"{self._found.count(None)} of {len(self._found)} micro-batches have no loss yet: the step is under "
                f"way, or the schedule does not flush, and finishes it with later steps; call drain() to finish all"
            )
        return [found for found in self._found if found is not None]
