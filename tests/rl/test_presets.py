"""Presets solve their environments: with three seeds in the soak, and one of them in every run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ropewalk import rl
from ropewalk.rl.presets import PRESETS

REACHED: dict[tuple[Any, str], float] = {
    (rl.PPO, "CartPole-v1"): 475,
    (rl.A2C, "CartPole-v1"): 400,
    (rl.IMPALA, "CartPole-v1"): 475,
    (rl.DQN, "CartPole-v1"): 475,
    (rl.PPO, "Acrobot-v1"): -100,
    (rl.PPO, "LunarLander-v3"): 200,
    (rl.SAC, "Pendulum-v1"): -200,
    (rl.TD3, "Pendulum-v1"): -200,
}
"""What 20 episodes without exploration score at least, in the mean."""


def test_every_preset_has_a_score_that_it_reaches() -> None:
    assert [(type(each.agent), each.environment.id) for each in PRESETS] == list(REACHED)  # type: ignore[attr-defined]
    assert all(each.groups for each in PRESETS), "or it would be another experiment with other numbers of actors"


@pytest.mark.parametrize(
    ("agent", "environment", "seed"),
    [
        pytest.param(*pair, seed, marks=[pytest.mark.soak] * ((pair, seed) != ((rl.A2C, "CartPole-v1"), 0)))
        for pair in REACHED
        for seed in range(3)
    ],
)
def test_presets_reach_their_scores(agent: Any, environment: str, seed: int) -> None:
    result = rl.preset(agent, environment, seed=seed).run(log="silent")
    assert np.mean(result.evaluate(20)) >= REACHED[agent, environment]
    if (agent, environment) == (rl.DQN, "CartPole-v1"):
        assert max(float(row["value"] or 0) for row in result.timeline if "value" in row) < 150, "100 is the largest"


def test_a_pair_without_settings_lists_those_that_have_some() -> None:
    with pytest.raises(ValueError, match=r"of R2D2 for 'CartPole-v1'; there are rl\.preset\(rl\.PPO, 'CartPole-v1'\)"):
        rl.preset(rl.R2D2, "CartPole-v1")
