"""What a kernel found worth sending, and the rule by which it decides."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: One-dimensional, contiguous, float32 or float64.
Floats = NDArray[Any]
Indices = NDArray[np.int32]
Bytes = NDArray[np.uint8]


class Selection(NamedTuple):
    """Components of a flat vector, by ascending index.

    Attributes:
        indices: where they are.
        values: what they are, in the dtype of the vector.
    """

    indices: Indices
    values: Floats


class Rule(NamedTuple):
    """Component i is kept back iff `|x_i| <= |base_i| * factor_i`; NaN is never kept back.

    Attributes:
        base: by component; None for 1 everywhere.
        factor: not negative; one for all components, or by component where there is a base.
    """

    base: Floats | None
    factor: Floats | float
