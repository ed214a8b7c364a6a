"""The memory of groups: which state a call gets."""

from __future__ import annotations

from typing import Any

import numpy as np

from ropewalk.rl.inference.recurrent_memory import RecurrentMemory


def state(number: float, num_envs: int = 2) -> dict[str, Any]:
    return {"memory": np.full((num_envs, 1), number)}


def value(found: tuple[Any, bool]) -> tuple[float, bool]:
    return found[0]["memory"][0, 0], found[1]


def memory() -> RecurrentMemory:
    made = RecurrentMemory(lambda num_envs: state(0, num_envs))
    made.keep(3, run=7, step=5, num_envs=2, before=state(50), after=state(60))
    return made


def test_the_next_step_gets_the_state_after_the_last_one() -> None:
    assert value(memory().before(3, 7, 6, 2)) == (60, True)


def test_a_repeated_step_gets_the_state_that_it_had() -> None:
    assert value(memory().before(3, 7, 5, 2)) == (50, True)


def test_everything_else_gets_the_initial_state() -> None:
    kept = memory()
    assert value(kept.before(3, 8, 6, 2)) == (0, False)  # another run
    assert value(kept.before(2, 7, 6, 2)) == (0, False)  # another group
    assert value(kept.before(3, 7, 7, 2)) == (0, False)  # a step was lost
    assert value(kept.before(3, 7, 4, 2)) == (0, False)
    assert value(kept.before(3, 7, 6, 3)) == (0, False)  # another number of environments
    assert kept.before(3, 7, 6, 3)[0]["memory"].shape == (3, 1)


def test_policies_without_memory_need_none() -> None:
    nothing = RecurrentMemory(lambda num_envs: {})
    assert not nothing.is_needed
    assert memory().is_needed
    nothing.keep(0, 0, 0, 2, {}, {})
    assert nothing.before(0, 0, 1, 2) == ({}, False)
