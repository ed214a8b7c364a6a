"""The selection of components to send, and the rule that decides it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]
"""One-dimensional, contiguous, float32 or float64."""
Indices = NDArray[np.int32]
Bytes = NDArray[np.uint8]


class Selection(NamedTuple):
    """Components of a flat vector, by ascending index.

    Attributes:
        indices: indices of the components, int32.
        values: their values, in the dtype of the vector.
    """

    indices: Indices
    values: Floats


class Rule(NamedTuple):
    """Component i is kept back iff `|x_i| <= |base_i| * factor_i`; NaN is never kept back.

    Attributes:
        base: by component; None for 1 everywhere.
        factor: not negative; one number for all components, or by component if there is a base.
    """

    base: Floats | None
    factor: Floats | float
