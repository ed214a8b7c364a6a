"""The check of behaviours that archives keep and compare."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def check_finite(behaviours: NDArray[np.float64]) -> None:
    """Raise ValueError if a behaviour is not finite: it would be the most novel of all, or make all novelties NaN.

    Args:
        behaviours: shape (n, components).
    """
    finite = np.isfinite(behaviours).all(axis=-1)
    if not finite.all():
        bad = behaviours[np.argmin(finite)].tolist()
        raise ValueError(
            f"a behaviour is not finite: {bad}; where an evaluation has no behaviour, let its fitness be NaN, so "
            "that the policy for NaN decides (evaluate(..., failures=FailurePolicy(nan=...)))"
        )
