"""Whether values are drawn on a logarithmic axis."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

LOG_FROM = 20.0
"""Positive values whose range exceeds this factor get a logarithmic axis."""
_LOW = 0.25
"""If half of them are in this lowest part of the range besides: a uniform distribution down to almost 0 is none."""


def is_logarithmic(values: Sequence[float]) -> bool:
    """Return whether the values of a hyperparameter are drawn on a logarithmic axis."""
    least, most = min(values, default=0.0), max(values, default=0.0)
    return 0 < least < most / LOG_FROM and statistics.median(values) < least + _LOW * (most - least)


__all__ = ["LOG_FROM", "is_logarithmic"]
