"""What the searches of `search.py` try: a function of fifty milliseconds, and a digit classifier."""

from __future__ import annotations

import pathlib
import sys
import time
from typing import Any

PAUSE_S = 0.05


def pause(number: int) -> float:
    time.sleep(PAUSE_S)
    return number * 1e-3


def paused(run: Any, x: float) -> float:
    time.sleep(PAUSE_S)
    return x


def objective(trial: Any) -> float:
    """As `paused`, for Optuna."""
    x = trial.suggest_float("x", 0, 1)
    time.sleep(PAUSE_S)
    return x


def digits() -> Any:
    """The example that searches a digit classifier."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))
    import search_digits

    return search_digits
