"""OpenAI-ES, against a single-process reference and on its problems."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ropewalk.population.algorithms.openai_es import OpenAIES
from ropewalk.population.noise_table import NoiseTable
from ropewalk.population.optimizers import SGD
from ropewalk.population.outcome import Outcome
from ropewalk.population.trial import Trial
from tests.population.algorithms.cart_pole import SEEDS, mean_return, play
from tests.population.local_loop import ask_and_evaluate, is_plain, run, same_state, sphere

TABLE = NoiseTable(2**14, 9)


def small(**changes: Any) -> OpenAIES:
    usual: dict[str, Any] = {"population": 16, "sigma": 0.1, "learning_rate": 0.05, "noise": TABLE, "seed": 4}
    return OpenAIES(5, **usual | changes)


def noisy(x: Any, trial: Trial) -> float:
    return sphere(x, trial) + 0.1 * trial.rng.standard_normal()


def rank(fitnesses: list[float]) -> list[float]:
    """Centred ranks of fitnesses that all differ."""
    order = sorted(fitnesses)
    return [order.index(each) / (len(order) - 1) - 0.5 for each in fitnesses]


def reference(function: Callable[[Any], float], generations: int, *, weight_decay: float) -> list[Any]:
    """Algorithm 2 with section 2.1 as one would write it down, in float64; the parameters after each generation."""
    x, mean, squares, after = np.zeros(5), np.zeros(5), np.zeros(5), []
    for generation in range(generations):
        draws = [TABLE.slice(TABLE.index(4, 8 * generation + k, 5), 5).astype(np.float64) for k in range(8)]
        fitnesses = [function(x + sign * 0.1 * draw) for draw in draws for sign in (1, -1)]
        weights = rank(fitnesses)
        gradient = sum(weights[2 * k] * draws[k] - weights[2 * k + 1] * draws[k] for k in range(8)) / 16
        gradient = gradient - weight_decay * x
        mean, squares = 0.9 * mean + 0.1 * gradient, 0.999 * squares + 0.001 * gradient**2
        step = generation + 1
        x = x + 0.05 * (mean / (1 - 0.9**step)) / (np.sqrt(squares / (1 - 0.999**step)) + 1e-8)
        after.append(x)
    return after


def test_it_equals_a_single_process_reference_step_by_step() -> None:
    algorithm = small(weight_decay=0.01)
    for generation, expected in enumerate(reference(lambda x: sphere(x, Trial(0)), 12, weight_decay=0.01)):
        run(algorithm, sphere, 1, first=generation)
        np.testing.assert_allclose(algorithm.incumbent(), expected, rtol=1e-4, atol=1e-5)
    assert algorithm.generation == 12


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_climbs_the_sphere_in_120_generations(seed: int) -> None:
    algorithm = OpenAIES(10, population=32, sigma=0.1, learning_rate=0.1, seed=seed, noise=TABLE)
    run(algorithm, sphere, 120)
    assert sphere(algorithm.incumbent(), Trial(0)) > -0.05  # from -10


@pytest.mark.parametrize("seed", SEEDS)
def test_it_solves_cart_pole_in_14_generations_of_24(seed: int) -> None:
    algorithm = OpenAIES(4, population=24, sigma=0.3, learning_rate=0.15, seed=seed, noise=TABLE)
    run(algorithm, play, 14)
    assert mean_return(algorithm.incumbent()) >= 475


@pytest.mark.parametrize("shaping", ["signs", "normalised", "log_utilities"])
def test_every_shaping_climbs(shaping: str) -> None:
    algorithm = small(shaping=shaping, population=32, learning_rate=0.1)
    run(algorithm, sphere, 60)
    assert sphere(algorithm.incumbent(), Trial(0)) > -0.1


@pytest.mark.parametrize("changes", [{"mirrored": False, "population": 48}, {"optimizer": "momentum"}], ids=str)
def test_without_mirrors_and_with_momentum_it_climbs(changes: dict[str, Any]) -> None:
    algorithm = small(**{"learning_rate": 0.5 if "optimizer" in changes else 0.1} | changes)
    run(algorithm, sphere, 80)
    assert sphere(algorithm.incumbent(), Trial(0)) > -0.2


def test_order_and_grouping_of_what_is_told_change_no_bit() -> None:
    states: list[Any] = []
    for shuffle in range(4):
        algorithm = small(observation_shape=(5,), observation_share=0.5)
        for generation in range(3):
            told = list(zip(*ask_and_evaluate(algorithm, normalising, ask=generation), strict=True))
            if shuffle:
                random.Random(shuffle).shuffle(told)
            for first in range(0, 16, 16 - 3 * shuffle):
                some = told[first : first + 16 - 3 * shuffle]
                algorithm.tell([candidate for candidate, _ in some], [outcome for _, outcome in some])
        states.append(algorithm.state_dict())
    assert states[0]["generation"] == 3
    assert all(same_state(state, states[0]) for state in states)


def normalising(x: Any, trial: Trial) -> float:
    return sphere(x + 0.01 * trial.normalise(x + trial.rng.standard_normal(5)), trial)


@pytest.mark.parametrize("told", [0, 5], ids=["between generations", "within one"])
def test_a_loaded_run_goes_on_as_the_unbroken_one(told: int) -> None:
    one, other = (small(observation_shape=(5,), observation_share=0.5, max_age=2) for _ in range(2))
    run(one, normalising, 3)
    candidates, outcomes = ask_and_evaluate(one, normalising, ask=3)
    one.tell(candidates[:told], outcomes[:told])
    saved = one.state_dict()
    assert is_plain(saved)
    other.load_state_dict(saved)
    for each in (one, other):
        each.tell(candidates[told:], outcomes[told:])
        run(each, normalising, 2, first=4)
    assert one.generation == 6 and same_state(one.state_dict(), other.state_dict())
    counts = [each.state_dict()["observations"]["count"] for each in (one, other)]
    assert counts[0] == counts[1] > 1


def test_a_step_is_taken_without_those_that_were_dropped() -> None:
    algorithm = small()
    for generation in range(60):
        candidates, outcomes = ask_and_evaluate(algorithm, sphere, ask=generation)
        algorithm.drop(candidates[generation % 7 :: 5])
        kept = [i for i in range(16) if candidates[i] not in candidates[generation % 7 :: 5]]
        algorithm.tell([candidates[i] for i in kept], [outcomes[i] for i in kept])
        assert algorithm.generation == generation + 1
    assert sphere(algorithm.incumbent(), Trial(0)) > -0.3  # from -5


def test_one_half_of_a_pair_counts_alone() -> None:
    algorithm = small(population=2, optimizer="sgd", learning_rate=1.0, shaping="normalised")
    algorithm.ask(8)
    algorithm.tell([0, 3], [Outcome(1.0), Outcome(-1.0)])  # +draw 0 and -draw 1
    draws = [TABLE.slice(TABLE.index(4, k, 5), 5) for k in range(2)]
    np.testing.assert_allclose(algorithm.incumbent(), (draws[0] + draws[1]) / 2, rtol=1e-6)


def test_what_is_carried_over_counts_in_the_next_step() -> None:
    algorithm = small()
    candidates, outcomes = ask_and_evaluate(algorithm, sphere)
    algorithm.tell(candidates[:12], outcomes[:12])
    assert algorithm.generation == 0
    more = algorithm.ask(16)
    assert algorithm.generation == 1  # the step was taken before these were given out
    algorithm.tell([*candidates[12:], *more], [*outcomes[12:], *outcomes])
    assert algorithm.generation == 2 and algorithm.figures()["stale"] == 4 / 20


def test_stale_results_are_skipped_if_asked_for() -> None:
    algorithm = small(max_age=0)
    candidates, outcomes = ask_and_evaluate(algorithm, sphere)
    algorithm.tell(candidates[:12], outcomes[:12])
    more, fresh = ask_and_evaluate(algorithm, sphere, ask=1)
    algorithm.tell([*candidates[12:], *more], [*outcomes[12:], *fresh])
    without = small(max_age=0)
    without.tell(list(without.ask(16))[:12], outcomes[:12])
    without.tell(without.ask(16), fresh)
    assert np.array_equal(algorithm.incumbent(), without.incumbent())
    assert algorithm.figures()["stale"] == 4 / 20 and without.figures()["stale"] == 0


def test_steady_state_takes_a_step_with_every_population_of_results() -> None:
    algorithm = small(max_age=3)
    under_way: list[tuple[int, Outcome]] = []
    for told in range(16 * 60):
        while len(under_way) < 6:
            [candidate] = algorithm.ask(1)
            under_way.append((candidate, algorithm.evaluator()(sphere, candidate, Trial(told))))
        candidate, outcome = under_way.pop(told % 5)
        algorithm.tell([candidate], [outcome])
    assert 55 <= algorithm.generation <= 60
    assert sphere(algorithm.incumbent(), Trial(0)) > -0.3


def test_the_evaluator_is_one_object_until_the_next_step() -> None:
    algorithm = small()
    candidates, outcomes = ask_and_evaluate(algorithm, sphere)
    before = algorithm.evaluator()
    algorithm.tell(candidates[:8], outcomes[:8])
    assert algorithm.evaluator() is before
    algorithm.tell(candidates[8:], outcomes[8:])
    assert algorithm.evaluator() is not before
    assert not before.centre.any() and algorithm.incumbent().any()


def test_observations_are_normalised_by_what_was_seen_before_this_generation() -> None:
    seen: list[Any] = []

    def look(x: Any, trial: Trial) -> float:
        seen.append(trial.normalise(np.array([3.0, -40.0])))
        return sphere(x, trial)

    algorithm = small(observation_shape=(2,), observation_share=1.0)
    first = algorithm.evaluator().observations
    run(algorithm, look, 2)
    assert first is not None and first.count < 1  # what was given out stays as it was
    assert all(each.tolist() == [3.0, -10.0] for each in seen[:16])  # nothing known yet; clipped
    assert all(abs(each[0]) < 0.3 for each in seen[16:])  # it is the mean now
    assert small().evaluator().observations is None


def test_weight_decay_pulls_towards_zero() -> None:
    algorithm = OpenAIES(np.full(5, 3.0), population=4, optimizer=SGD(0.1), weight_decay=0.5, noise=TABLE)
    algorithm.tell(algorithm.ask(4), [Outcome(1.0)] * 4)  # equal fitnesses: no other gradient
    np.testing.assert_allclose(algorithm.incumbent(), 3 * 0.95, rtol=1e-6)


def test_infinite_fitnesses_do_not_spoil_the_parameters() -> None:
    for shaping in ("centred_ranks", "normalised"):
        algorithm = small(shaping=shaping)
        outcomes = [Outcome(float("-inf")), *[Outcome(float(i)) for i in range(14)], Outcome(float("inf"))]
        algorithm.tell(algorithm.ask(16), outcomes)
        assert np.isfinite(algorithm.incumbent()).all() and algorithm.incumbent().any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"population": 15}, "population must be even if mirrored, not 15"),
        ({"sigma": 0}, "sigma must be above 0, not 0"),
        ({"weight_decay": -1}, "weight_decay must be 0 or more, not -1"),
        ({"shaping": "rank"}, "shaping must be one of"),
        ({"optimizer": "newton"}, "optimizer must be 'adam'"),
        ({"noise": NoiseTable(4)}, "a vector of 5 numbers does not fit into a noise table of 4"),
        ({"max_age": -1}, "max_age must be 0 steps or more"),
        ({"seed": -1}, "seed must be a whole number, 0 or more"),
    ],
)
def test_arguments_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**changes)


def test_the_state_of_another_run_is_refused() -> None:
    with pytest.raises(ValueError, match=r"population 16 there and 8 here, seed 4 there and 5 here"):
        small(population=8, seed=5).load_state_dict(small().state_dict())
