"""The metrics of a training step: the loss of each micro-batch, and of the whole step."""

from __future__ import annotations

from torch import Tensor

from ropewalk.pipeline.stages.losses import Loss


class StepMetrics:
    """The losses and the gradient norm of one step.

    With a `LocalExecutor` they are complete when `step` returns, with a trainer somewhat later. Schedules without a
    flush may complete them only in later steps, or in a drain.
    """

    def __init__(self, num_pieces: int, loss: Loss) -> None:
        self._found: list[tuple[Tensor, float | None] | None] = [None] * num_pieces
        self._loss = loss
        self.gradient_norm: Tensor | None = None
        """The global norm of the gradients before clipping, a scalar, if clipping or a NaN policy needs it; else None.
        """
        self.is_skipped = False
        """Whether the update was skipped because gradients were NaN or infinite."""

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
        """Record the loss of a micro-batch.

        Args:
            index: number of the micro-batch within the step.
            value: its loss, a scalar.
            weight: its weight in the step's mean; None if the step's loss is a sum.
        """
        self._found[index] = value, weight

    @property
    def done(self) -> bool:
        """Whether the losses of all micro-batches are known."""
        return None not in self._found

    @property
    def losses(self) -> tuple[Tensor, ...]:
        """The loss of each micro-batch, a scalar each.

        Raises:
            RuntimeError: the step is not `done`.
        """
        return tuple(value for value, _ in self._pieces())

    @property
    def loss(self) -> Tensor:
        """The loss of the step, a scalar: the sum, or the mean over all samples.

        Raises:
            RuntimeError: the step is not `done`.
        """
        return self._loss.over(self._pieces())

    def _pieces(self) -> list[tuple[Tensor, float | None]]:
        if not self.done:
            raise RuntimeError(
                f"{self._found.count(None)} of {len(self._found)} micro-batches have no loss yet: the step is under "
                f"way, or the schedule does not flush, and finishes it with later steps; call drain() to finish all"
            )
        return [found for found in self._found if found is not None]
