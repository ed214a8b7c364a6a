"""Memory in the depot: a file of its size that goes when it is closed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ropewalk.sharing.states.memory import MemoryState
from ropewalk.sharing.states.waiting import Waiter
from tests.sharing.states.desk import party


@pytest.mark.parametrize(("asked", "made"), [(0, 1), (1, 1), (2, 2), (100_000, 100_000)])
def test_it_tells_where_there_are_so_many_zeros(asked: int, made: int) -> None:
    state, waiter = MemoryState(asked), Waiter(party("a"))
    (outcome,) = state.place(waiter)
    assert outcome.waiter is waiter and outcome.error is None
    assert Path(outcome.value).read_bytes() == bytes(made)
    state.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(int(Path(outcome.value).name))
