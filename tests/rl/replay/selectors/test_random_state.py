"""States of generators as arrays."""

from __future__ import annotations

import numpy as np

from ropewalk.rl.replay.selectors.random_state import random_state_of, set_random_state
from ropewalk.rl.seeds import generator


def test_a_generator_goes_on_where_the_saved_one_was() -> None:
    rng = generator(3, "a")
    rng.integers(0, 10, 3, dtype=np.int32)  # leaves half of a word for the next draw
    state = random_state_of(rng)
    other = generator(4, "b")
    set_random_state(other, state)
    for draw in (lambda g: g.integers(0, 1000, 5, dtype=np.int32), lambda g: g.random(5)):
        np.testing.assert_array_equal(draw(other), draw(rng))
    assert state.dtype == np.uint64 and state.shape == (6,)
