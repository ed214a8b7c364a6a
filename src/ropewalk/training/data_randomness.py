"""Random numbers of data that several processes read, each by itself: the same in all, whatever else they draw.

process of stage 0    data() shuffles by the run's seed ─▶ x ─┐ belong together, also after one of the processes
process of stage 2    data() shuffles by the run's seed ─▶ y ─┘ was replaced by one that has drawn nothing yet
"""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_numpy: Any = np.random


class DataRandomness:
    """The generators that a user's data draws from by default: torch's on the CPU, Python's and numpy's.

    Args:
        seed: what they begin with, not negative.
    """

    def __init__(self, seed: int) -> None:
        self._torch = torch.Generator().manual_seed(seed).get_state()
        self._python = random.Random(seed).getstate()
        self._numpy: Any = _numpy.MT19937(seed)

    @contextmanager
    def drawing(self) -> Generator[None]:
        """In this context numbers go on from where the last one ended; those outside are not disturbed."""
        outside = torch.get_rng_state(), random.getstate()
        bits = _numpy.get_bit_generator()  # to swap it takes 1 µs, and to set its state 150
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        _numpy.set_bit_generator(self._numpy)
        try:
            yield
        finally:
            self._torch, self._python = torch.get_rng_state(), random.getstate()
            torch.set_rng_state(outside[0])
            random.setstate(outside[1])
            _numpy.set_bit_generator(bits)


__all__ = ["DataRandomness"]
