"""Numbers stand for agents in environments, whoever asks for them and in whichever order they are told."""

from __future__ import annotations

import json
import pickle
import random
from typing import Any

import numpy as np
import pytest

from ropewalk.population.noise_table import NoiseTable
from ropewalk.population.open_ended.bouts import AgentEnvPair, Bout, BoutRound
from ropewalk.population.outcome import Outcome
from ropewalk.population.ranks import centred_ranks
from ropewalk.population.trial import Trial
from ropewalk.population.weighted_sum import Draws

DRAWS = Draws(NoiseTable(2**12), 7, 3)
AGENTS = [np.array([1, 2, 3], np.float32), np.array([10, 20, 30], np.float32)]
BOUTS = [Bout(0, 1, 4, 0.5, 90), Bout(1, 0, 2)]
ENVIRONMENTS = [{"name": "plain"}, {"name": "hill"}]


def a_round() -> BoutRound:
    return BoutRound(40, BOUTS, AGENTS, ENVIRONMENTS, DRAWS)


def outcomes(*fitnesses: float) -> list[Outcome]:
    return [Outcome(fitness) for fitness in fitnesses]


def test_a_number_stands_for_an_agent_with_mirrored_noise_in_an_environment() -> None:
    evaluator = pickle.loads(pickle.dumps(a_round().evaluator))
    seen = [evaluator.parameters(number) for number in range(40, 46)]
    noise = np.float32(0.5) * np.stack([DRAWS[90], -DRAWS[90], DRAWS[91], -DRAWS[91]])
    assert np.array_equal(np.stack([agent for agent, _ in seen[:4]]), AGENTS[0] + noise)
    assert all(np.array_equal(agent, AGENTS[1]) for agent, _ in seen[4:])
    assert [environment["name"] for _, environment in seen] == ["hill"] * 4 + ["plain"] * 2


def test_the_fitness_function_gets_parameters_environment_and_trial() -> None:
    def fitness(parameters: Any, environment: Any, trial: Trial) -> float:
        return float(parameters.sum()) + len(environment["name"]) + trial.seed

    evaluator = a_round().evaluator
    assert evaluator(fitness, 45, Trial(1000)).fitness == 60 + 5 + 1000
    assert evaluator.test(fitness, AgentEnvPair(0, ENVIRONMENTS[1], AGENTS[0], None), Trial(0)).fitness == 6 + 4


def test_no_agent_can_be_changed_by_its_evaluation() -> None:
    agent, _ = a_round().evaluator.parameters(44)
    with pytest.raises(ValueError, match="read-only"):
        agent[0] = 5


def test_numbers_are_asked_for_once_in_any_portions() -> None:
    this = a_round()
    assert [list(this.ask(4)), list(this.ask(4)), list(this.ask(4))] == [[40, 41, 42, 43], [44, 45], []]


def test_a_round_is_complete_when_all_was_told_or_dropped() -> None:
    this = a_round()
    this.ask(6)
    assert this.tell([45, 41], outcomes(3, 4)) == 2
    this.drop([40, 42, 43])
    assert not this.is_complete
    this.drop([44])
    assert this.is_complete
    assert (this.score(0), this.score(1)) == (4, 3)


def test_a_bout_of_which_nothing_was_told_has_no_score() -> None:
    this = a_round()
    this.ask(6)
    this.drop(range(40, 46))
    assert this.score(0) is None
    (numbers, weights), num = this.group(0, centred_ranks)
    assert (len(numbers), len(weights), num) == (0, 0, 0)


def test_what_was_dropped_or_is_of_an_earlier_round_comes_too_late() -> None:
    this = a_round()
    this.ask(6)
    this.drop([41])
    assert this.tell([39, 41, 40], outcomes(1, 2, 3)) == 1
    assert this.score(0) == 3


def test_telling_what_was_not_asked_for_is_refused() -> None:
    this = a_round()
    this.ask(2)
    with pytest.raises(ValueError, match="candidate 42 was not asked for; the last one was 41"):
        this.tell([42], outcomes(1))


def test_weights_are_those_of_pairs_of_which_halves_may_be_missing() -> None:
    this = a_round()
    this.ask(6)
    this.tell([42, 43, 41], outcomes(5, 1, 3))
    this.drop([40])
    (numbers, weights), num = this.group(0, centred_ranks)
    assert (numbers.tolist(), weights.tolist(), num) == ([90, 91], [0.0, 1.0], 3)


def test_the_order_of_telling_changes_nothing() -> None:
    fitnesses = dict(zip(range(40, 46), (3.0, 1.0, 4.0, 1.5, 9.0, 2.0), strict=True))
    states: list[Any] = []
    for seed in range(3):
        this, order = a_round(), random.Random(seed).sample(range(40, 46), 6)
        this.ask(6)
        for number in order:
            this.tell([number], outcomes(fitnesses[number]))
        states.append(this.state_dict()["fitness"].tobytes())
    assert len(set(states)) == 1


def test_a_round_goes_on_from_its_state() -> None:
    this = a_round()
    this.ask(5)
    this.tell([41, 44], outcomes(7, 8))
    this.drop([40])
    state = this.state_dict()
    json.dumps({name: value for name, value in state.items() if name not in ("fitness", "status")})
    again = BoutRound.from_state_dict(state, AGENTS, ENVIRONMENTS, DRAWS)
    for each in (this, again):
        assert list(each.ask(5)) == [45]
        assert each.tell([40, 42, 43, 45], outcomes(1, 2, 3, 4)) == 3
        assert each.is_complete and (each.score(0), each.score(1)) == (4, 6)
