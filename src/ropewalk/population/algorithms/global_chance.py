"""Random numbers of the whole process, as one optimiser alone would draw them.

pycma and DEAP draw from `numpy.random` and `random`, EvoTorch from torch. What the rest of the process draws in
between, such as a fitness function that is evaluated in the same process, would change their course, and theirs that of
the others. So each has the states of these generators for itself while it works, and they are saved with it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np


class GlobalChance:
    """Within its block, the process-wide generators are where its last block left them.

    Args:
        seed: of all of them; None begins where they are now. Torch's only on the CPU, and only if it was imported.
    """

    def __init__(self, seed: int | None) -> None:
        self._own = _states()
        if seed is not None:
            with self:
                random.seed(seed)
                np.random.seed(seed % 2**32)  # the one that libraries share
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
    """After the block, the process-wide generators are where they were before it."""
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
