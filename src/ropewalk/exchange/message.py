"""`Message`: the payload that an encoder makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Message:
    """A payload as it travels; empty where a member has nothing to send.

    Attributes:
        data: one-dimensional uint8; may be a view of memory that the encoder reuses after `commit`.
        layers: number of bytes by parameter name; they add up to the length of `data` (bytes that belong to no single
            parameter, such as a header, count for the first one).
        num_values: number of components that were sent.
    """

    data: NDArray[np.uint8]
    layers: Mapping[str, int]
    num_values: int = 0

    @property
    def bits(self) -> int:
        """The exact number of bits that are sent."""
        return 8 * len(self.data)
