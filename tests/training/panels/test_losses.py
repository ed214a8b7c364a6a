from __future__ import annotations

import json
import math

import torch

from ropewalk.training.loss_history import LossHistory
from ropewalk.training.panels.losses import loss_panel
from tests.training.test_loss_history import metrics


def test_losses_come_as_columns_and_those_that_are_not_finite_as_gaps() -> None:
    losses = LossHistory()
    for step, loss in enumerate((2.0, math.nan, 1.0)):
        one = metrics(loss)
        one.gradient_norm = torch.tensor(3.0) if step else None
        losses.put(step, one, 4, 100.0 + step)
    data = loss_panel(losses, 0)
    assert json.loads(json.dumps(data, allow_nan=False)) == {
        "cursor": 3,
        "step": [0, 1, 2],
        "at": [100.0, 101.0, 102.0],
        "loss": [2.0, None, 1.0],
        "gradient_norm": [None, 3.0, 3.0],
    }
    assert loss_panel(losses, 2)["step"] == [2]
