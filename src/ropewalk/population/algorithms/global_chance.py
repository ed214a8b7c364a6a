"""Isolation of the process-wide random number generators, so that an optimiser draws from them as if it were alone.

pycma and DEAP draw from `numpy.random` and `random`, EvoTorch from torch. Draws by other code in between, such as a
fitness function that runs in the same process, would change the course of an optimiser, and its draws would change the
course of other code. So each optimiser keeps its own states of these generators, which are saved with it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np


class GlobalChance:
    """A context manager in which the process-wide generators continue from the end of its previous block.

    Args:
        seed: seed of all generators; None starts from their current states. Torch's generator is included for the CPU
            only, and only if torch was imported.
    """

    def __init__(self, seed: int | None) -> None:
        self._own = _states()
        if seed is not None:
            with self:
                random.seed(seed)
                np.random.seed(seed % 2**32)  # the generator that libraries share
                if "torch" in sys.modules:
                    sys.modules["torch"].random.default_generator.manual_seed(seed)
        self._others: Any = None

    def __enter__(self) -> None:
        self._others = _states()
        _restore(self._own)

    def __exit__(self, *_: object) -> None:
        self._own = _states()
        _restore(self._others)
        self._others = None


@contextmanager
def undone_chance() -> Generator[None]:
    """Restore the states of the process-wide generators after the block."""
    before = _states()
    try:
        yield
    finally:
        _restore(before)


def _states() -> tuple[Any, Any, Any]:
    torch = sys.modules.get("torch")
    return random.getstate(), np.random.get_state(), torch and torch.random.get_rng_state()


def _restore(states: tuple[Any, Any, Any]) -> None:
    of_random, of_numpy, of_torch = states
    random.setstate(of_random)
    np.random.set_state(of_numpy)
    if of_torch is not None:
        sys.modules["torch"].random.set_rng_state(of_torch)
