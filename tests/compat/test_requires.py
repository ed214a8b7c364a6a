"""`requires` attaches what a function needs to it, and refuses at once what cannot be."""

from __future__ import annotations

import functools
import math
import pickle
from typing import Any

import cloudpickle
import pytest

from ropewalk.compat.requires import requires, resources_of
from ropewalk.engines.resources import Resources

NEEDS = Resources(cpus=2, gpus=1, memory="1Gi")


@requires(cpus=2, gpus=1, memory="1Gi")
def simulate(seed: int) -> int:
    return seed


class Simulation:
    @requires(cpus=3)
    def run(self) -> None:
        """Nothing."""

    @requires(cpus=4)
    @staticmethod
    def inside() -> None:
        """Nothing."""

    @staticmethod
    @requires(cpus=5)
    def outside() -> None:
        """Nothing."""

    @requires(cpus=6)
    @classmethod
    def of_class(cls) -> None:
        """Nothing."""


@requires(cpus=7)
class Sized:
    def run(self) -> None:
        """Nothing."""

    def __call__(self) -> None:
        """Nothing."""


class Callable:
    @requires(cpus=8)
    def __call__(self, *args: int) -> None:
        """Nothing."""


def test_a_function_says_what_it_needs_and_still_does_what_it_did() -> None:
    assert resources_of(simulate) == NEEDS and simulate(3) == 3 and simulate.__name__ == "simulate"


@pytest.mark.parametrize(
    ("function", "cpus"),
    [
        (Simulation().run, 3),
        (Simulation.run, 3),
        (Simulation.inside, 4),
        (Simulation().outside, 5),
        (Simulation.of_class, 6),
        (Sized, 7),
        (Sized(), 7),
        (type("Special", (Sized,), {}), 7),
        (Callable(), 8),
        (functools.partial(functools.partial(Callable()), 1), 8),
        (functools.partial(simulate, 1), 2),
    ],
)
def test_methods_classes_instances_and_partials_say_it_too(function: Any, cpus: int) -> None:
    found = resources_of(function)
    assert found and found.cpus == cpus


def test_a_wrapper_that_names_what_it_wraps_needs_the_same() -> None:
    @functools.wraps(simulate)
    def logged(seed: int) -> int:
        return simulate(seed)

    assert resources_of(logged) == NEEDS


def test_a_function_pickled_by_value_still_says_it() -> None:
    @requires(memory="2Gi")
    def local() -> None:
        """Nothing."""

    assert resources_of(pickle.loads(cloudpickle.dumps(local))) == Resources(memory="2Gi")


class AnswersAll:
    def __getattr__(self, name: str) -> str:
        return name


@pytest.mark.parametrize("silent", [len, print, Simulation, Simulation(), AnswersAll(), None, functools.partial(len)])
def test_what_nothing_was_said_of_needs_nothing_in_particular(silent: object) -> None:
    assert resources_of(silent) is None


def test_the_first_that_says_something_counts() -> None:
    assert resources_of(None, len, simulate, Sized) == NEEDS and resources_of() is None


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"cpu": 2}, ValueError, "no cpu; did you mean cpus? It takes cpus, gpus, memory"),
        ({"nodes": 2}, ValueError, "no nodes; it takes cpus, gpus, memory"),
        (
            {"cpus": 0},
            ValueError,
            "requires(cpus=0, gpus=0, memory=None): resources.cpus must be a number above 0, not 0",
        ),
        ({"cpus": math.inf}, ValueError, "above 0, not inf"),
        ({"cpus": "2"}, TypeError, "resources.cpus is of type str; give a number above 0"),
        ({"gpus": -1}, ValueError, "0 or more, not -1"),
        ({"gpus": 0.5}, TypeError, "resources.gpus is of type float; give a whole number, 0 or more"),
        ({"memory": "4gb"}, ValueError, 'did you mean "4G"?'),
        ({"memory": 1000}, ValueError, "is 1000 bytes, and a process needs 64 MiB at least"),
        ({"memory": "4M"}, ValueError, "is 4000000 bytes"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(
    arguments: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind) as caught:
        requires(**arguments)
    assert words in str(caught.value)


def test_without_brackets_it_says_how_it_is_written() -> None:
    with pytest.raises(TypeError, match=r"write @ropewalk\.requires\(cpus=2\)"):
        requires(simulate)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("function", [len, Simulation().run, math.sqrt])
def test_what_can_carry_nothing_is_refused_with_what_to_do(function: Any) -> None:
    with pytest.raises(TypeError, match="define a function that calls it, and decorate that"):
        requires(cpus=2)(function)
