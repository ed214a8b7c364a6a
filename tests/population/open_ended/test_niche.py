"""An agent learns in its niche; another one that moves in starts over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ropewalk.population.open_ended.niche import ESConfig, Niche
from ropewalk.population.optimizers import Adam

START = np.array([1, -1], np.float32)
GRADIENT = np.array([3, 1], np.float32)
LEARNING = ESConfig(sigma=0.4, sigma_decay=0.5, least_sigma=0.15, learning_rate=0.1, learning_rate_decay=0.5,
                    least_learning_rate=0.04, weight_decay=0.25)  # fmt: skip


def test_an_agent_steps_as_its_optimizer_says_with_its_parameters_decaying() -> None:
    niche, optimizer = Niche(0, "here", START, LEARNING), Adam(0.1)
    niche.learn(GRADIENT)
    expected = optimizer.step(START, (GRADIENT - 0.25 * START).astype(np.float32))
    optimizer.learning_rate = 0.05
    niche.learn(GRADIENT)
    expected = optimizer.step(expected, (GRADIENT - np.float32(0.25) * expected).astype(np.float32))
    assert np.array_equal(niche.parameters, expected) and START.tolist() == [1, -1]


def test_noise_and_learning_rate_shrink_down_to_their_least() -> None:
    niche, sigmas, rates = Niche(0, "here", START, LEARNING), list[float](), list[float]()
    for _ in range(3):
        niche.learn(GRADIENT)
        sigmas.append(niche.sigma)
        rates.append(niche.state_dict()["optimizer"]["learning_rate"])
    assert (sigmas, rates) == ([0.2, 0.15, 0.15], [0.05, 0.04, 0.04])


def test_an_agent_that_moves_in_begins_to_learn_anew() -> None:
    niche, new = Niche(0, "here", START, LEARNING), Niche(0, "here", GRADIENT, LEARNING)
    niche.learn(GRADIENT)
    niche.adopt(GRADIENT, 5.0)
    assert (niche.sigma, niche.score) == (0.4, 5.0)
    for each in (niche, new):
        each.learn(START)
    assert np.array_equal(niche.parameters, new.parameters)


def test_fine_tuning_is_the_first_step_of_a_new_optimizer_and_leaves_the_agent_as_it_is() -> None:
    niche, new = Niche(0, "here", START, LEARNING), Niche(0, "here", START, LEARNING)
    tuned = niche.fine_tuned(GRADIENT)
    assert np.array_equal(niche.parameters, START) and niche.sigma == 0.4
    new.learn(GRADIENT)
    assert np.array_equal(tuned, new.parameters)


def test_a_niche_goes_on_from_its_state() -> None:
    niche = Niche(3, {"hill": 2.0}, START, LEARNING)
    niche.learn(GRADIENT)
    niche.score = 7.0
    again = Niche.from_state_dict(niche.state_dict(), LEARNING)
    for each in (niche, again):
        each.learn(GRADIENT)
    assert (again.number, again.environment, again.score, again.sigma) == (3, {"hill": 2.0}, 7.0, niche.sigma)
    assert np.array_equal(again.parameters, niche.parameters)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pairs": 0}, "pairs must be a whole number, 1 or more, not 0"),
        ({"sigma": 0.001}, "sigma must be at least least_sigma and both above 0, not 0.001 and 0.01"),
        ({"learning_rate_decay": 1.5}, "learning_rate_decay must be above 0 and at most 1, not 1.5"),
        ({"weight_decay": -1}, "weight_decay must be 0 or more, not -1"),
        ({"optimizer": "adamw"}, "optimizer must be .*, not 'adamw'"),
        ({"shaping": "rank"}, "shaping must be one of .*, not 'rank'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ESConfig(**arguments)
