"""The state of a random generator as an array, so that it can be saved beside other arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.environments.spec import Array

_WORD = (1 << 64) - 1


def random_state_of(rng: np.random.Generator) -> NDArray[np.uint64]:
    """Return the state of a generator of the kind PCG64, which `ropewalk.rl.seeds.generator` makes."""
    state: dict[str, Any] = dict(rng.bit_generator.state)
    numbers = state["state"]["state"], state["state"]["inc"]
    words = [word for number in numbers for word in (number >> 64, number & _WORD)]
    return np.array([*words, state["has_uint32"], state["uinteger"]], np.uint64)


def set_random_state(rng: np.random.Generator, words: Array) -> None:
    """Continue where the generator was whose state `random_state_of` returned."""
    high, low, inc_high, inc_low, has_uint32, uinteger = (int(word) for word in words)
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }


__all__ = ["random_state_of", "set_random_state"]
