"""CMA-ES: what the library does, in our loop."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ropewalk.population.outcome import Outcome
from ropewalk.population.trial import Trial
from tests.population.algorithms.cart_pole import SEEDS, mean_return, play
from tests.population.local_loop import ask_and_evaluate, is_plain, rastrigin, run, same_state, sphere

cmaes = pytest.importorskip("cmaes")

from ropewalk.population.algorithms.cma_es import CMAES  # noqa: E402

KINDS: list[dict[str, Any]] = [{}, {"separable": True}, {"adapt_learning_rate": True}]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_it_equals_the_library_alone_step_by_step(kind: dict[str, Any]) -> None:
    algorithm = CMAES(4, population=8, sigma=0.5, seed=3, **kind)
    if kind.get("separable"):
        library: Any = cmaes.SepCMA(np.zeros(4), 0.5, seed=3, population_size=8)
    else:
        library = cmaes.CMA(np.zeros(4), 0.5, seed=3, population_size=8, lr_adapt="adapt_learning_rate" in kind)
    for generation in range(20):
        asked = [library.ask() for _ in range(8)]
        library.tell([(x, -sphere(x, Trial(0))) for x in asked])
        run(algorithm, sphere, 1, first=generation)
        assert np.array_equal(algorithm.incumbent(), library.mean)
    assert algorithm.generation == 20


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("separable", [False, True])
def test_it_climbs_the_sphere_in_100_generations(seed: int, separable: bool) -> None:
    algorithm = CMAES(10, sigma=0.5, separable=separable, seed=seed)
    run(algorithm, sphere, 100)
    assert sphere(algorithm.incumbent(), Trial(0)) > -1e-4  # from -10


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_finds_the_best_of_rastrigins_optima_in_40_generations_of_150(seed: int) -> None:
    algorithm = CMAES([2.2, -1.7], population=150, sigma=2.0, seed=seed)
    run(algorithm, rastrigin, 40)
    assert rastrigin(algorithm.incumbent(), Trial(0)) > -0.5  # the next best optima have -1


@pytest.mark.parametrize("seed", SEEDS)
def test_it_solves_cart_pole_in_10_generations_of_24(seed: int) -> None:
    algorithm = CMAES(4, population=24, sigma=0.5, seed=seed)
    for generation in range(10):
        run(algorithm, play, 1, first=generation)
        if mean_return(algorithm.incumbent()) >= 475:
            return
    pytest.fail("not solved")


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_loaded_run_goes_on_as_the_unbroken_one(kind: dict[str, Any]) -> None:
    one, other = (CMAES(4, population=8, seed=1, **kind) for _ in range(2))
    run(one, sphere, 5)
    candidates, outcomes = ask_and_evaluate(one, sphere, ask=5)
    one.tell(candidates[:3], outcomes[:3])
    saved = one.state_dict()
    assert is_plain(saved)
    other.load_state_dict(saved)
    for each in (one, other):
        each.tell(candidates[3:], outcomes[3:])
        run(each, sphere, 5, first=6)
    assert one.generation == 11 and same_state(one.state_dict(), other.state_dict())
    assert not same_state(saved, one.state_dict())


def test_what_lay_in_memory_is_not_in_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[Any] = []
    for found in (1.0, float("nan")):
        monkeypatch.setattr(np, "empty", lambda shape, found=found: np.full(shape, found))  # as the library asks for it
        states.append(CMAES(4, population=8, seed=1).state_dict())
    assert same_state(*states)


def test_what_is_missing_is_asked_anew_and_what_is_too_much_waits() -> None:
    algorithm = CMAES(3, population=8)
    candidates, outcomes = ask_and_evaluate(algorithm, sphere)
    algorithm.tell(candidates[:5], outcomes[:5])
    assert algorithm.generation == 0
    more, fresh = ask_and_evaluate(algorithm, sphere, ask=1)
    assert len(more) == 3
    algorithm.tell(more, fresh)
    assert algorithm.generation == 1
    algorithm.tell(candidates, outcomes)  # late ones
    algorithm.tell(candidates[:6], outcomes[:6])
    assert algorithm.generation == 2 and len(algorithm.ask(8)) == 2


def test_infinite_fitnesses_are_the_worst_and_the_best() -> None:
    algorithm = CMAES(3, population=8)
    for _ in range(40):
        candidates = algorithm.ask(8)
        algorithm.tell(candidates, [Outcome(-math.inf if x[0] < 0.2 else sphere(x, Trial(0))) for x in candidates])
        assert not algorithm.finished
    assert np.allclose(algorithm.incumbent(), 1, atol=0.2)


def test_nothing_but_infinite_fitnesses_is_nothing_to_go_on_for() -> None:
    algorithm = CMAES(3, population=8)
    for _ in range(30):
        algorithm.tell(algorithm.ask(8), [Outcome(-math.inf)] * 8)
    assert algorithm.finished


def test_bounds_hold() -> None:
    algorithm = CMAES(np.full(3, 0.2), bounds=[(-1, 0.5)] * 3, sigma=1.0)
    run(algorithm, sphere, 40)
    assert all((x <= 0.5).all() and (x >= -1).all() for x in algorithm.ask(20))
    assert np.allclose(algorithm.incumbent(), 0.5, atol=0.05)


def test_it_ends_when_nothing_changes_any_more() -> None:
    algorithm = CMAES(3, population=8)
    for _ in range(300):
        if algorithm.finished:
            break
        run(algorithm, sphere, 1)
    assert algorithm.finished and algorithm.figures()["sigma"] < 1e-3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CMAES(0), "at least 1 parameter, not 0"),
        (lambda: CMAES([[1.0]]), "initial must be finite parameters as an array of one dimension"),
        (lambda: CMAES(3, population=3), "population must be at least 4, not 3"),
        (lambda: CMAES(3, sigma=0), "sigma must be above 0, not 0"),
        (lambda: CMAES(3, separable=True, adapt_learning_rate=True), "needs the full covariance"),
        (lambda: CMAES(3, bounds=[(0, 1)]), r"bounds must have the shape \(3, 2\), .* not \(1, 2\)"),
        (lambda: CMAES(1, bounds=[(1, 2)]), "with the initial mean between them"),
    ],
)
def test_arguments_are_checked(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_the_state_of_another_run_is_refused() -> None:
    with pytest.raises(ValueError, match="separable False there and True here"):
        CMAES(3, separable=True).load_state_dict(CMAES(3).state_dict())
    saved = CMAES(3).state_dict()
    del saved["library"]["_cc"]
    with pytest.raises(ValueError, match=r"another version of cmaes: \['_cc'\]"):
        CMAES(3).load_state_dict(saved)
