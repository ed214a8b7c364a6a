"""Experience that is not finite is refused at the adder, with its place."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from ropewalk.errors import NotFinite
from ropewalk.rl.adders.unroll import UnrollAdder
from tests.rl.adders.experience import experience


@pytest.mark.parametrize(
    ("column", "place", "value"),
    [("reward", (1, 2), np.nan), ("observation.image", (3, 0, 1), np.inf), ("observation.speed", (0, 1), -np.inf)],
)
def test_environment_step_and_column_are_named(column: str, place: tuple[int, ...], value: float) -> None:
    _, blocks = experience(0, 3, [4, 4])
    adder = UnrollAdder()
    adder.add(blocks[0])
    blocks[1].columns[column][place] = value
    with pytest.raises(
        NotFinite, match=f"{column} of environment {place[1]} is {value} at step {4 + place[0]} of"
    ) as caught:
        adder.add(blocks[1])
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.column, error.env, error.step, error.run_id) == (column, place[1], 4 + place[0], "0#0")


def test_extras_may_be_infinite() -> None:
    """A log-probability may be, and priorities are not computed from it here."""
    _, blocks = experience(0, 1, [2])
    blocks[0].columns["value"][0, 0] = -np.inf
    UnrollAdder().add(blocks[0])
