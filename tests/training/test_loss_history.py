"""Losses kept for a look at any time: all of the last steps, fewer of the earlier ones, and the rates."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from ropewalk.pipeline.stages.losses import Loss
from ropewalk.pipeline.step_metrics import StepMetrics
from ropewalk.training.loss_history import LossHistory

LOSS = Loss(torch.nn.functional.mse_loss, "mean")


def metrics(loss: float | None) -> StepMetrics:
    """Of a step of one micro-batch; None: its loss is not known yet."""
    made = StepMetrics(1, LOSS)
    if loss is not None:
        made.put(0, torch.tensor(loss), 4.0)
    return made


def history(num: int, **sizes: int) -> LossHistory:
    made = LossHistory(**sizes)
    for step in range(num):
        made.put(step, metrics(float(step)), 4, 100.0 + step)
    return made


def test_a_first_look_gets_all_recent_steps_and_some_earlier_ones() -> None:
    cursor, found = history(1000, num_recent=10, num_old=20).after(0)
    steps = [one.step for one in found]
    assert cursor == 1000 and steps[-10:] == list(range(990, 1000))
    gaps = {later - earlier for earlier, later in pairwise(steps[:-10])}
    assert steps[0] == 0 and gaps == {64} and len(steps) <= 30
    assert [one.loss for one in found] == steps


def test_a_later_look_gets_the_new_steps_alone() -> None:
    losses = history(5)
    cursor, _ = losses.after(0)
    losses.put(5, metrics(0.5), 4, 105.0)
    assert [(one.step, one.loss, one.at) for one in losses.after(cursor)[1]] == [(5, 0.5, 105.0)]
    assert losses.after(6) == (6, [])


def test_earlier_steps_come_once_while_a_recent_one_is_not_known() -> None:
    # The cursor stayed before them as long as the first recent step was not known: each look got them again.
    losses = history(6, num_recent=2)
    for step in (6, 7):
        losses.put(step, metrics(None), 4, 100.0 + step)
    cursor, found = losses.after(0)
    assert [one.step for one in found] == [0, 1, 2, 3, 4, 5]
    assert losses.after(cursor) == (cursor, [])


def test_a_step_that_is_not_known_yet_comes_when_it_is() -> None:
    losses, late = history(2), metrics(None)
    losses.put(2, late, 4, 102.0)
    losses.put(3, metrics(3.0), 4, 103.0)
    cursor, found = losses.after(0)
    assert [one.step for one in found] == [0, 1]
    last = losses.last()
    assert last and last.step == 3, "the header shows the newest that is known"
    late.put(0, torch.tensor(2.0), 4.0)
    assert [one.loss for one in losses.after(cursor)[1]] == [2.0, 3.0]


def test_steps_that_are_trained_again_after_the_load_of_an_older_state_are_new() -> None:
    losses = history(4)
    cursor, _ = losses.after(0)
    losses.put(2, metrics(7.0), 4, 110.0)
    assert [(one.step, one.loss) for one in losses.after(cursor)[1]] == [(2, 7.0)]


def test_rates_are_those_of_the_last_seconds_and_fall_when_nothing_goes_on() -> None:
    losses = history(100)
    assert losses.rates(now=199.0) == pytest.approx((1.0, 4.0))
    assert losses.rates(now=209.0) == pytest.approx((1 / 11, 4 / 11)), "one step since the one before it"
    assert history(1).rates(now=100.0) is None
