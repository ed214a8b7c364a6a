"""The panel "loss": the loss of each step.

Data, of which the columns grow (see `Observable.view`):

    {"cursor": 118, "step": [0, 1, ...], "at": [1764193935.2, ...], "loss": [0.69, ...], "gradient_norm": [1.2, ...]}

A first look gets all of the last 256 steps, and at most 2048 earlier ones, evenly spaced. "at" is the Unix time at
which the step was admitted; "gradient_norm" is None where it was not computed.
"""

from __future__ import annotations

import math
from typing import Any

from ropewalk.training.loss_history import LossHistory


def loss_panel(losses: LossHistory, cursor: int) -> dict[str, Any]:
    """Return the data of the panel.

    Args:
        losses: of the training.
        cursor: of the last data; 0: none.
    """
    cursor, found = losses.after(cursor)
    return {
        "cursor": cursor,
        "step": [one.step for one in found],
        "at": [round(one.at, 3) for one in found],
        "loss": [_finite(one.loss) for one in found],
        "gradient_norm": [None if one.gradient_norm is None else _finite(one.gradient_norm) for one in found],
    }


def _finite(value: float) -> float | None:
    """Return a number that JSON has: NaN and infinity are gaps."""
    return value if math.isfinite(value) else None
