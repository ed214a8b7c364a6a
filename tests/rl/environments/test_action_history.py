from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.rl.environments.action_history import ActionHistory
from ropewalk.rl.environments.spec import ArraySpec


@given(
    seed=st.integers(0, 1000),
    num_steps=st.integers(0, 500),
    length=st.floats(1, 300),
    restored=st.integers(0, 400),
    shape=st.sampled_from([(), (2,)]),
)
def test_it_remembers_what_lists_would(
    seed: int, num_steps: int, length: float, restored: int, shape: tuple[int, ...]
) -> None:
    """Three environments with episodes of some length; in one step, the history moves to another object."""
    rng = np.random.default_rng(seed)
    resets = [{env for env in range(3) if rng.random() < 1 / length} for _ in range(num_steps)]
    history, expected = ActionHistory(3, ArraySpec(shape, "int64")), [list[object](), list[object](), list[object]()]
    for step, envs in enumerate(resets):
        if step == restored:
            moved = ActionHistory(3, ArraySpec(shape, "int64"))
            moved.restore(tuple(history.of(env) for env in range(3)))
            history = moved
        action = np.arange(3 * int(np.prod(shape))).reshape(3, *shape) + 10 * step
        history.append(action)
        for env in range(3):
            expected[env].append(action[env].tolist())
            if env in envs:
                history.begin(env)
                expected[env].clear()
    assert [history.of(env).tolist() for env in range(3)] == expected


def test_it_does_not_grow_while_episodes_are_short() -> None:
    history = ActionHistory(2, ArraySpec((), "int64"))
    for step in range(100_000):
        history.append(np.array([step, step]))
        if step % 20 == 0:
            history.begin(0)
            history.begin(1)
    assert len(history._rows) == 64
    assert history.of(1).tolist() == list(range(99_981, 100_000))


def test_what_it_returned_does_not_change() -> None:
    history = ActionHistory(1, ArraySpec((), "int64"))
    action = np.array([3])
    history.append(action)
    kept = history.of(0)
    action[0] = 4
    history.begin(0)
    for _ in range(200):
        history.append(action)
        history.begin(0)
    assert kept.tolist() == [3]
