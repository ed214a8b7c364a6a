"""Hyperparameters that a trial asks for by name."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from ropewalk.errors import SearchInvalid
from ropewalk.population.hyperparameters import Choice, Integers, LogUniform, Uniform
from ropewalk.search.samplers import SAMPLERS
from ropewalk.search.samplers.sampler import Observed
from ropewalk.search.space import SearchSpace
from ropewalk.search.space_text import described_distribution, distribution_of
from ropewalk.search.suggesting import Suggestions


def of_sampler(name: str, known: dict[str, Any]) -> Suggestions:
    sampler = SAMPLERS.make(name, {})
    sampler.begin(SearchSpace({}), 1, 7)
    trial = Observed(0, sampler.ask(0, []), None, 0.0, is_under_way=True)
    return Suggestions(lambda name, distribution: sampler.suggest(0, name, distribution, [trial]), known)


@pytest.mark.parametrize("name", ["random", "sobol", "tpe", "cmaes"])
def test_calls_become_values_once(name: str) -> None:
    trial = of_sampler(name, {})
    rate = trial.suggest_float("rate", 1e-5, 1e-1, log=True)
    assert 1e-5 <= rate <= 1e-1 and trial.suggest_float("rate", 1e-5, 1e-1, log=True) == rate
    assert trial.suggest_float("drop", 0, 0.5, step=0.25) in (0.0, 0.25, 0.5)
    assert trial.suggest_int("layers", 1, 9, step=4) in (1, 5, 9)
    assert trial.suggest_categorical("kind", ["a", "b"]) in ("a", "b")
    assert trial.distributions == {
        "rate": LogUniform(1e-5, 1e-1),
        "drop": Uniform(0, 0.5, 0.25),
        "layers": Integers(1, 9, 4),
        "kind": Choice(["a", "b"]),
    }
    assert list(trial.values) == list(trial.distributions)


def test_the_order_of_questions_makes_no_difference_to_random_search() -> None:
    one, other = of_sampler("random", {}), of_sampler("random", {})
    first = one.suggest_int("a", 1, 1000), one.suggest_int("b", 1, 1000)
    second = other.suggest_int("b", 1, 1000), other.suggest_int("a", 1, 1000)
    assert first == second[::-1]


def never(name: str, distribution: Any) -> Any:
    raise AssertionError(f"{name} is drawn")


def test_what_is_known_is_not_drawn() -> None:
    trial = Suggestions(never, {"rate": "1e-3", "batch": 32})
    assert trial.suggest_float("rate", 1e-5, 1e-1, log=True) == 1e-3
    assert trial.suggest_int("batch", 16, 64) == 32
    assert trial.values == {"rate": 1e-3, "batch": 32}
    with pytest.raises(SearchInvalid, match=r"given for batch cannot be used: 32 is not between 1 and 8"):
        Suggestions(never, {"batch": 32}).suggest_int("batch", 1, 8)


def test_a_trial_that_begins_anew_gets_its_values_again() -> None:
    before = of_sampler("random", {})
    before.suggest_int("a", 1, 1000)
    again = Suggestions(never, before.values, before.distributions)
    assert again.suggest_int("a", 1, 1000) == before.values["a"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda trial: trial.suggest_float("a", 2, 1), "suggestion of a: low must be at most high"),
        (lambda trial: trial.suggest_float("a", 1, 2, step=1, log=True), "step= or log=True, not both"),
        (lambda trial: trial.suggest_int("a", 0, 2, log=True), "low of at least 1"),
        (lambda trial: trial.suggest_int("a", 0.5, 2), "are integers, not 0.5"),
        (lambda trial: trial.suggest_categorical("a", []), "at least one value"),
        (lambda trial: trial.suggest_categorical("a", [[1]]), "a value of Choice is"),
        (lambda trial: trial.suggest_int("", 1, 2), "'' is not a name"),
        (lambda trial: (trial.suggest_int("a", 1, 2), trial.suggest_int("a", 1, 3)), "asks for a twice"),
    ],
)
def test_questions_that_cannot_be_are_refused(call: Any, message: str) -> None:
    with pytest.raises(SearchInvalid, match=message):
        call(of_sampler("random", {}))


def test_a_question_that_is_refused_is_not_kept() -> None:
    trial = Suggestions(partial(SAMPLERS.make("grid", {}).suggest, 0, trials=[]), {})
    with pytest.raises(
        SearchInvalid, match=r"asked for 'a' by suggest_\*, and GridSampler samples only what is in the"
    ):
        trial.suggest_int("a", 1, 2)
    assert trial.values == {} and trial.distributions == {}


@pytest.mark.parametrize(
    "distribution",
    [Uniform(0, 1), Uniform(0, 1, 0.5), LogUniform(1, 2), Integers(1, 9, 2), Choice(["a", None, 1, True])],
)
def test_distributions_travel_as_data(distribution: Any) -> None:
    assert distribution_of(described_distribution(distribution), "a") == distribution
