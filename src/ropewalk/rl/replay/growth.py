"""Arrays that grow geometrically, so that adding to them costs the same on average, however large they are."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

_Scalar = TypeVar("_Scalar", bound=np.generic)


def grown(array: NDArray[_Scalar], size: int, fill: Any = 0) -> NDArray[_Scalar]:
    """Return an array with at least `size` entries on its first axis: the same one, or a larger one with its contents.

    New entries have the value `fill`.
    """
    if size <= len(array):
        return array
    larger = np.full((max(size, 2 * len(array), 16), *array.shape[1:]), fill, array.dtype)
    larger[: len(array)] = array
    return larger


__all__ = ["grown"]
