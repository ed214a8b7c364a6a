"""Calls of many actors become batches, and each actor gets its own answer."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest

np = pytest.importorskip("numpy")
LoadExample = Callable[[str], types.ModuleType]


def test_the_policy_answers_each_row_as_if_it_were_alone(load_example: LoadExample) -> None:
    example = load_example("central_inference")
    policy = example.Policy(seed=0)
    observations = np.random.default_rng(1).standard_normal((5, 2 * example.CARTS))
    together = policy.act(observations)
    alone = np.stack([policy.act(row[None])[0] for row in observations])
    assert np.array_equal(together, alone) and set(together.ravel()) == {-1.0, 1.0}
    assert policy.sizes() == [5, 1, 1, 1, 1, 1]


def test_the_carts_stay_in_sight_under_any_policy(load_example: LoadExample) -> None:
    example = load_example("central_inference")
    for seed in range(5):
        assert np.abs(example.play_alone(seed, example.Policy(seed=seed), 1000)).max() < 10


def test_every_observation_is_answered_once_and_batches_form(load_example: LoadExample, mode: str) -> None:
    example = load_example("central_inference")
    result = example.main(mode=mode)
    assert sum(result["sizes"]) == example.ACTORS * example.STEPS
    assert 1 < max(result["sizes"]) <= example.ACTORS
    # `main` compares with what each actor reaches alone; they also differ from one another.
    assert len({state.tobytes() for state in result["states"]}) == example.ACTORS
