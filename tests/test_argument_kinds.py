"""What public constructors say of an argument that is obviously of another type."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.argument_kinds import check_callable, check_kind, check_number
from ropewalk.search import Search


def test_a_wrong_type_is_told_with_an_example() -> None:
    with pytest.raises(TypeError, match=r"^rate is of type str; give a number$"):
        check_kind("rate", "fast", int | float, "a number")
    check_kind("rate", 1.5, int | float, "a number")
    check_kind("rate", None, int | float, "a number")
    with pytest.raises(TypeError, match=r"^rate is of type NoneType; give a number$"):
        check_kind("rate", None, int | float, "a number", required=True)


@pytest.mark.parametrize("kind", [Integral, Real, int, int | float])
def test_true_and_false_are_no_numbers(kind: Any) -> None:
    with pytest.raises(TypeError, match=r"^rate is of type bool; give a number$"):
        check_kind("rate", True, kind, "a number")
    check_kind("rate", True, bool | int, "a number")
    check_kind("is_on", False, bool, "True or False")


@pytest.mark.parametrize(
    ("given", "bounds", "message"),
    [
        (0, {"least": 1}, "rate must be a number, 1 or more, or None, not 0"),
        (0.5, {"least": 1, "required": True}, "rate must be a number, 1 or more, not 0.5"),
        (0, {"above": 0}, "rate must be a number above 0, or None, not 0"),
        (math.nan, {"above": 0}, "rate must be a number above 0, or None, not nan"),
        (math.nan, {"least": 0}, "rate must be a number, 0 or more, or None, not nan"),
        (math.inf, {"least": 0, "finite": True}, "rate must be a number, 0 or more, or None, not inf"),
    ],
)
def test_a_number_out_of_its_range_is_told_with_the_range(given: float, bounds: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        check_number("rate", given, int | float, "a number", **bounds)


def test_a_number_within_its_range_passes_and_another_exception_can_be_asked_for() -> None:
    check_number("rate", 1, Integral, "a number", least=1)
    check_number("rate", math.inf, Real, "a number", above=0)
    check_number("rate", None, Real, "a number", above=0)
    with pytest.raises(TypeError, match="rate is of type NoneType; give a number above 0"):
        check_number("rate", None, Real, "a number", above=0, required=True)
    with pytest.raises(LookupError):
        check_number("rate", 0, Real, "a number", above=0, error=LookupError)


def test_what_is_called_has_to_be_callable() -> None:
    check_callable("report", None, "a function")
    check_callable("report", print, "a function", required=True)
    for given, required in ((3, False), (None, True)):
        with pytest.raises(TypeError, match=r"^report is of type \w+; give a function$"):
            check_callable("report", given, "a function", required=required)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        # It was: 'str' object has no attribute 'items'.
        ({"space": "lr"}, r'space is of type str; give {"lr": LogUniform'),
        ({"metric": 3}, 'metric is of type int; give "loss"'),
        ({"mode": 3}, 'mode is of type int; give "max" or "min"'),
        ({"trials": "ten"}, "trials is of type str; give a number of trials, 1 or more, or None"),
        ({"sampler": 3}, "sampler is of type int; give a name such as"),
        ({"time_limit_s": "1h"}, "time_limit_s is of type str; give a number of seconds"),
        ({"name": 3}, "name is of type int; give a text"),
        ({"train": "train.py:train"}, r"train is of type str; give a function"),
    ],
)
def test_a_search(argument: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Search(**{"train": lambda run: None, "metric": "loss", "trials": 1, **argument})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        # It was: 'int' object has no attribute 'lease'.
        ({"session": 3}, r"session is of type int; give ropewalk.Session\(\)"),
        ({"name": 3}, "name is of type int; give a text"),
        ({"environment": ["A=1"]}, "environment is of type list; give variables by name"),
        ({"max_deaths": None}, "max_deaths is of type NoneType; give a whole number"),
        ({"preload": None}, "preload is of type NoneType; give"),
        ({"max_deaths": "3"}, "max_deaths is of type str; give a whole number"),
        ({"task_timeout_s": "1h"}, "task_timeout_s is of type str; give a number of seconds"),
    ],
)
def test_a_pool(argument: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        rw.Pool(1, **argument)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        # It was: 'str' object has no attribute 'every'.
        ({"test": "eight"}, r"test is of type str; give a number of episodes"),
        ({"checkpoint": 3}, "checkpoint is of type int; give a folder"),
        ({"log": 3}, "log is of type int; give the path of a file"),
        ({"replay": 3}, "replay is of type int; give the path of a log"),
        ({"report": 3}, "report is of type int; give a function"),
        ({"seed": "one"}, "seed is of type str; give a whole number"),
        ({"track": 3}, "track is of type int; give True, or the name of a project"),
    ],
)
def test_a_population(argument: dict[str, Any], message: str) -> None:
    np, population = pytest.importorskip("numpy"), pytest.importorskip("ropewalk.population")
    method = population.OpenAIES(np.zeros(2), population=4, sigma=0.1, seed=1)
    with pytest.raises(TypeError, match=message):
        population.evaluate(method, lambda x: 0.0, generations=1, **argument)  # type: ignore[arg-type]
