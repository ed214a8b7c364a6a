"""`Message`: what an encoder says, as it travels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Message:
    """A payload as it travels; empty where a member has nothing to say.

    Attributes:
        data: one-dimensional uint8; may be a view of memory that the encoder uses again after `commit`.
        layers: bytes of it by parameter name, adding up to all of them (what belongs to no parameter alone, such as a
            header, lies with the first one).
        num_values: components that were sent.
    """

    data: NDArray[np.uint8]
    layers: Mapping[str, int]
    num_values: int = 0

    @property
    def bits(self) -> int:
        """What is sent, exactly."""
        return 8 * len(self.data)
