"""Samplers of Optuna: the suite of samplers, what they are told, and that they learn."""

from __future__ import annotations

import logging
import math
import warnings
from typing import Any

import optuna
import pytest

from ropewalk.errors import SearchInvalid
from ropewalk.population.hyperparameters import Integers, LogUniform, Uniform
from ropewalk.search.samplers import SAMPLERS
from ropewalk.search.samplers.by_optuna import OptunaHistorySampler, OptunaSampler
from ropewalk.search.samplers.optuna_trials import TrialHistory
from ropewalk.search.samplers.sampler import Observed, Sampler
from ropewalk.search.space import SearchSpace
from ropewalk.testing.sampler_conformance import SamplerConformance

PLANE = SearchSpace({"x": Uniform(-5.0, 5.0), "rate": LogUniform(1e-5, 1.0)})


def bowl(values: dict[str, Any]) -> float:
    return -((values["x"] - 2) ** 2) - (math.log10(values["rate"]) + 2) ** 2


def best_of(name: str, seed: int, trials: int, **options: Any) -> float:
    sampler, known = SAMPLERS.make(name, options), []
    sampler.begin(PLANE, 1, seed)
    for number in range(trials):
        values = sampler.ask(number, known)
        known.append(Observed(number, values, (bowl(values),), 1.0, is_under_way=False))
        sampler.tell(known[-1])
    return max(each.scores[0] for each in known)


class TestTPE(SamplerConformance):
    def make_sampler(self) -> Sampler:
        return SAMPLERS.make("tpe", {"n_startup_trials": 6})


class TestCMAES(SamplerConformance):
    most_objectives = 1

    def make_sampler(self) -> Sampler:
        return SAMPLERS.make("cmaes", {"popsize": 4})


class TestQMC(SamplerConformance):
    def make_sampler(self) -> Sampler:
        return SAMPLERS.make("qmc", {})


class TestNSGA2(SamplerConformance):
    def make_sampler(self) -> Sampler:
        return SAMPLERS.make("nsga2", {"population_size": 4})


class TestNSGA3(SamplerConformance):
    def make_sampler(self) -> Sampler:
        return SAMPLERS.make("nsga3", {"population_size": 4})


class TestAnyClassOfOptuna(SamplerConformance):
    def make_sampler(self) -> Sampler:
        return OptunaSampler(optuna.samplers.RandomSampler)


def test_gaussian_processes_are_asked() -> None:
    assert best_of("gp", 1, 4, n_startup_trials=3) > -60


@pytest.mark.parametrize("name", ["tpe", "cmaes"])
def test_they_learn_what_random_search_does_not(name: str) -> None:
    """The mean of the best of 40, over 5 fixed seeds."""
    learned = [best_of(name, seed, 40) for seed in range(5)]
    random = [best_of("random", seed, 40) for seed in range(5)]
    assert sum(learned) / 5 > sum(random) / 5


def observed(number: int, **changes: Any) -> Observed:
    facts: dict[str, Any] = {"scores": None, "step": 0.0, "is_under_way": True}
    return Observed(number, {"x": float(number), "rate": 0.1}, **(facts | changes))


def test_trials_have_the_state_that_optuna_learns_most_from() -> None:
    states = optuna.trial.TrialState
    history = TrialHistory(PLANE, 1).trials(
        [
            observed(0),
            observed(1, scores=(0.5,), step=3.0, intermediate={1.0: 0.2, 2.0: math.nan, 3.0: 0.5}),
            observed(2, scores=(0.7,), step=3.0, is_under_way=False),
            observed(3, scores=(0.1,), step=1.0, is_under_way=False, was_stopped=True),
            observed(4, scores=(0.1,), is_under_way=False, has_failed=True),
            observed(5, is_under_way=False),
        ]
    )
    expected = [states.RUNNING, states.PRUNED, states.COMPLETE, states.PRUNED, states.FAIL, states.FAIL]
    assert [each.state for each in history] == expected
    assert history[1].intermediate_values == {1: 0.2, 3: 0.5} and history[1].value == 0.5
    assert history[2].values == [0.7] and history[2].params == {"x": 2.0, "rate": 0.1}


def test_a_trial_that_has_changed_is_told_anew_and_others_are_kept() -> None:
    history = TrialHistory(PLANE, 1)
    first = history.trials([observed(0), observed(1)])
    second = history.trials([observed(1), observed(0, scores=(1.0,), is_under_way=False)])
    assert second[1] is first[1] and second[0] is not first[0] and second[0].values == [1.0]


def test_several_objectives_have_no_intermediate_values() -> None:
    states = optuna.trial.TrialState
    history = TrialHistory(PLANE, 2).trials(
        [observed(0, scores=(1.0, 2.0), step=1.0), observed(1, scores=(1.0, 2.0), step=1.0, is_under_way=False)]
    )
    assert [each.state for each in history] == [states.RUNNING, states.COMPLETE]
    assert history[1].values == [1.0, 2.0]


def test_values_that_a_changed_space_no_longer_has_are_not_learned_from() -> None:
    (found,) = TrialHistory(PLANE, 1).trials([Observed(0, {"x": 7.0, "rate": 0.1}, (1.0,), 1.0, is_under_way=False)])
    assert found.state == optuna.trial.TrialState.FAIL and found.params == {}
    sampler = SAMPLERS.make("cmaes", {})
    sampler.begin(PLANE, 1, 1)
    assert sampler.ask(1, [Observed(0, {"x": 7.0, "rate": 0.1}, (1.0,), 1.0, is_under_way=False)]) is not None


def test_trials_under_way_are_avoided() -> None:
    """The sampler would try the best place again and again if it did not know that trials there are under way."""
    done = [
        Observed(number, {"x": -5 + number / 2, "rate": 0.01}, (-abs(number - 14.0),), 1.0, is_under_way=False)
        for number in range(20)
    ]
    around = [Observed(20 + number, {"x": 2.0, "rate": 0.01}, None, 0.0, is_under_way=True) for number in range(12)]
    sampler = SAMPLERS.make("tpe", {})
    sampler.begin(PLANE, 1, 1)
    alone = [abs(sampler.ask(40 + number, done)["x"] - 2) for number in range(12)]
    beside = [abs(sampler.ask(40 + number, done + around)["x"] - 2) for number in range(12)]
    assert sum(beside) > sum(alone)


def proposed_after(x: float) -> float:
    """The mean of what CMA-ES proposes after 24 trials near x, for which it was never asked."""
    known = [
        Observed(number, {"x": x + number / 100, "rate": 0.01}, (-number / 100,), 1.0, is_under_way=False)
        for number in range(24)
    ]
    sampler = SAMPLERS.make("cmaes", {"popsize": 6})
    sampler.begin(PLANE, 1, 1)
    for number in range(24, 34):
        known.append(Observed(number, sampler.ask(number, known), None, 0.0, is_under_way=True))
    return sum(each.hyperparameters["x"] for each in known[24:]) / 10


def test_what_a_person_gave_is_learned_from_by_samplers_with_generations() -> None:
    assert proposed_after(3.0) > 1 and proposed_after(-3.0) < -1


def test_constraints_that_reject_all_that_a_sampler_proposes_leave_random_values() -> None:
    """One in 500 configurations is admitted, and a sampler of fixed points never proposes it."""
    space = SearchSpace({"a": Integers(1, 500)}, ["a == 137"])
    for name in ("tpe", "qmc"):
        sampler = SAMPLERS.make(name, {})
        sampler.begin(space, 1, 1)
        known = []
        for number in range(2):
            values = sampler.ask(number, known)
            assert values == {"a": 137}
            known.append(Observed(number, values, (1.0,), 1.0, is_under_way=False))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SAMPLERS.make("tpe", {"n_startup_trial": 3}), "no option 'n_startup_trial'; did you mean"),
        (lambda: SAMPLERS.make("cmaes", {}).begin(PLANE, 2, 1), "2 objectives, and CMA-ES takes one"),
        (lambda: SAMPLERS.make("nsga2", {"population_size": 1}).begin(PLANE, 2, 1), "cannot be made"),
        (lambda: SAMPLERS.make("tpe", {"multivariate": False, "group": True}).begin(PLANE, 1, 1), "cannot be made"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(make: Any, message: str) -> None:
    with pytest.raises(SearchInvalid, match=message):
        make()


def test_distributions_that_optuna_does_not_have_are_named() -> None:
    class Coin:
        def draw(self, rng: Any) -> bool:
            return bool(rng.random() < 0.5)

        def perturb(self, value: bool, factor: float) -> bool:
            return not value

    for name in ("tpe", "cmaes"):
        with pytest.raises(SearchInvalid, match=r"coin is of a class that Optuna does not have.*'random'"):
            SAMPLERS.make(name, {}).begin(SearchSpace({"coin": Coin()}), 1, 1)


def test_a_sampler_object_counts_with_its_own_seed() -> None:
    def first() -> Any:
        sampler = OptunaSampler(optuna.samplers.RandomSampler(seed=5))
        sampler.begin(PLANE, 1, 99)
        return sampler.ask(0, [])

    assert first() == first()


def test_optuna_neither_logs_nor_warns_of_experiments(capfd: pytest.CaptureFixture[str]) -> None:
    level = optuna.logging.get_verbosity()
    sampler = OptunaHistorySampler(lambda seed: optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler.begin(PLANE, 1, 1)
        assert sampler.ask(0, [])
    assert optuna.logging.get_verbosity() == level == logging.INFO
    assert capfd.readouterr().err == ""
