"""A loss that is NaN or infinite is told once, with its step, its micro-batch and what to do."""

from __future__ import annotations

import math

import pytest
import torch

from ropewalk.pipeline.stages.losses import Loss
from ropewalk.pipeline.stages.training_options import NanPolicy, TrainingOptions
from ropewalk.pipeline.step_metrics import StepMetrics
from ropewalk.training.step_watch import LossWatch


def step_with(*losses: float | None, device: str = "cpu") -> StepMetrics:
    """Return the metrics of a step; None: a loss that has not arrived."""
    metrics = StepMetrics(len(losses), Loss(lambda output, labels: output))
    for index, loss in enumerate(losses):
        if loss is not None:
            metrics.put(index, torch.tensor(loss, device=device), 1.0)
    return metrics


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_the_first_loss_that_is_not_finite_is_told_once(odd: float) -> None:
    said: list[str] = []
    watch = LossWatch(TrainingOptions())
    for step, losses in enumerate([(1.0, 2.0), (1.0, odd), (odd, odd)]):
        watch.put(step, step_with(*losses))
        watch.look(said.append)
    assert len(said) == 1
    assert said[0].startswith(f"the loss of step 1 is {odd:g} in micro-batch 1 of 2") and "clip_norm=1.0" in said[0]
    assert "autocast" not in said[0]


def test_the_remedies_are_those_that_the_training_does_not_have() -> None:
    said: list[str] = []
    watch = LossWatch(TrainingOptions(clip_norm=2.0, autocast=torch.bfloat16))
    watch.put(0, step_with(math.nan, math.nan))
    watch.look(said.append)
    assert "in 2 of 2 micro-batches" in said[0] and "a clip_norm below 2" in said[0]
    assert "to train without autocast=torch.bfloat16" in said[0]


@pytest.mark.parametrize("nan", ["skip", "raise"])
def test_nothing_is_said_if_a_policy_handles_it(nan: NanPolicy) -> None:
    said: list[str] = []
    watch = LossWatch(TrainingOptions(nan=nan))
    watch.put(0, step_with(math.nan))
    watch.look(said.append)
    assert not said


def test_a_step_that_is_under_way_is_looked_at_when_it_is_done() -> None:
    said: list[str] = []
    watch, metrics = LossWatch(TrainingOptions()), step_with(math.nan, None)
    watch.put(0, metrics)
    watch.look(said.append)
    assert not said
    metrics.put(1, torch.tensor(1.0), 1.0)
    watch.look(said.append)
    assert len(said) == 1


def test_a_loss_on_another_device_is_not_waited_for_until_the_trainer_waits() -> None:
    watch = LossWatch(TrainingOptions())
    watch.put(0, step_with(1.0, device="meta"))  # a tensor whose number cannot be read, as if it were not there yet
    watch.put(1, step_with(math.nan))
    said: list[str] = []
    watch.look(said.append)
    assert not said, "the steps after it wait with it"
    with pytest.raises(RuntimeError, match="meta"):
        watch.look(said.append, waits=True)
