"""A loss belongs to the step whose micro-batch it is of, whichever outcome brings it."""

from __future__ import annotations

from typing import Any

import torch

from ropewalk.pipeline.stages.losses import Loss
from ropewalk.pipeline.step_metrics import StepMetrics
from ropewalk.training.assignment import AdmissionOutcome
from ropewalk.training.step_losses import StepLosses


def metrics(num: int = 2) -> StepMetrics:
    return StepMetrics(num, Loss(torch.nn.functional.mse_loss, "mean"))


def outcome(numbers: tuple[int, ...], **facts: Any) -> AdmissionOutcome:
    values = torch.tensor([float(number) for number in numbers]) if numbers else None
    return AdmissionOutcome(numbers, values, (None,) * len(numbers), **facts)


def losses_of(one: StepMetrics) -> list[float]:
    return [float(value) for value in one.losses]


def test_without_flushes_a_loss_may_come_with_the_outcome_of_a_later_step() -> None:
    losses, first, second = StepLosses(flushes=False), metrics(), metrics()
    losses.expect(first, 0, 2)
    losses.expect(second, 2, 2)
    losses.arrived(first, outcome((0,)))
    assert not first.done
    losses.arrived(second, outcome((1, 3, 2)))
    assert losses_of(first) == [0.0, 1.0] and losses_of(second) == [2.0, 3.0]


def test_with_flushes_each_step_numbers_its_micro_batches_anew() -> None:
    losses, first, second = StepLosses(flushes=True), metrics(), metrics()
    losses.expect(first, 0, 2)
    losses.arrived(first, outcome((0, 1), norm=torch.tensor(5.0), is_skipped=True))
    losses.arrived(second, outcome((1, 0)))
    assert losses_of(first) == losses_of(second) == [0.0, 1.0]
    assert first.is_skipped and float(first.gradient_norm or 0) == 5.0 and second.gradient_norm is None


class Looked(StepMetrics):
    """What a look in another thread finds as soon as the step is done."""

    seen: Any = ()

    def put(self, index: int, value: torch.Tensor, weight: float | None) -> None:
        super().put(index, value, weight)
        if self.done:
            self.seen = self.gradient_norm, self.is_skipped


def test_a_step_that_is_done_has_its_norm() -> None:
    # It came after the losses: a look in between kept that there was none.
    one = Looked(2, Loss(torch.nn.functional.mse_loss, "mean"))
    StepLosses(flushes=True).arrived(one, outcome((0, 1), norm=torch.tensor(5.0), is_skipped=True))
    assert one.seen == (torch.tensor(5.0), True)
