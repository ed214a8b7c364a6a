"""The genetic algorithm against one in which whole vectors are kept, and on CartPole."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest

from ropewalk.pool.seeds import derive
from ropewalk.population.algorithms.genetic import Genetic
from ropewalk.population.noise_table import NoiseTable
from ropewalk.population.outcome import Outcome
from ropewalk.population.trial import Trial

NOISE = NoiseTable(1 << 14, seed=1)
SETTINGS: dict[str, Any] = {"population": 12, "parents": 4, "validated": 2, "episodes": 3, "sigma": 0.1, "noise": NOISE}
TARGET = np.linspace(-1, 1, 6)


def genetic(initial: Any = 6, **changed: Any) -> Genetic:
    settings: dict[str, Any] = SETTINGS | changed
    return Genetic(initial, **settings)


def found_by(algorithm: Genetic) -> np.ndarray:
    incumbent = algorithm.incumbent()
    assert incumbent is not None
    return incumbent


def noisy_sphere(parameters: np.ndarray, trial: Trial) -> float:
    return -float(((parameters - TARGET) ** 2).sum()) + 0.1 * float(trial.rng.standard_normal())


def evaluated(
    algorithm: Genetic, candidates: Sequence[int], fitness: Callable[..., float] = noisy_sphere
) -> list[Outcome]:
    evaluator = algorithm.evaluator()
    return [evaluator(fitness, candidate, Trial(derive(5, candidate))) for candidate in candidates]


def run(algorithm: Genetic, generations: int, fitness: Callable[..., float] = noisy_sphere) -> Genetic:
    while algorithm.generation < generations:
        candidates = algorithm.ask(algorithm.population)
        algorithm.tell(candidates, evaluated(algorithm, candidates, fitness))
    return algorithm


def same(one: Genetic, other: Genetic) -> bool:
    return pickle.dumps(one.state_dict()) == pickle.dumps(other.state_dict())


def reference(generations: int, seed: int, start: np.ndarray) -> tuple[list[float], np.ndarray]:
    """Deep GA with whole vectors in lists: fitnesses in the order of evaluation, and the elite."""
    fitnesses: list[float] = []
    number = 0
    parents: list[np.ndarray] = [start.astype(np.float32)]
    champions: list[dict[str, Any]] = []
    elite: dict[str, Any] | None = None

    def evaluate(parameters: np.ndarray) -> float:
        nonlocal number
        fitnesses.append(noisy_sphere(parameters, Trial(derive(5, number))))
        number += 1
        return fitnesses[-1]

    for generation in range(generations):
        for champion in champions:
            champion["returns"] += [evaluate(champion["parameters"]) for _ in range(3)]
        children = []
        for _ in range(12):
            parent = parents[derive(derive(seed, 1), number) % len(parents)]
            index = NOISE.index(derive(seed, 2), number, len(start))
            child = parent + np.float32(1.0 if generation == 0 else 0.1 * 0.9**generation) * NOISE.slice(
                index, len(start)
            )
            children.append((evaluate(child), child))
        if champions:
            elite = max(champions, key=lambda champion: np.mean(champion["returns"]))
        best = [child for _, child in sorted(children, key=lambda child: -child[0])[:4]]
        champions = [{"parameters": child, "returns": []} for child in best[:2]]
        if elite:
            champions.insert(0, elite)
        parents = ([elite["parameters"]] if elite else []) + best
    assert elite
    return fitnesses, elite["parameters"]


def test_it_equals_a_genetic_algorithm_that_keeps_whole_vectors() -> None:
    start = np.linspace(0, 3, 6)
    algorithm = genetic(start, initial_sigma=1.0, sigma_decay=0.9, seed=7)
    seen: list[float] = []
    while algorithm.generation < 12:
        candidates = algorithm.ask(12)
        outcomes = evaluated(algorithm, candidates)
        seen += [outcome.fitness for outcome in outcomes]
        algorithm.tell(candidates, outcomes)
    fitnesses, elite = reference(12, 7, start)
    assert seen == fitnesses
    assert found_by(algorithm).tobytes() == elite.tobytes()
    assert algorithm.genome and algorithm.genome.decode(start, NOISE).tobytes() == elite.tobytes()


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_the_top_of_a_sphere(seed: int) -> None:
    algorithm = Genetic(10, population=50, parents=10, sigma=0.1, initial_sigma=1.0, validated=1, episodes=1,
                        noise=NOISE, seed=seed)  # fmt: skip
    run(algorithm, 40, lambda x, trial: -float(((x - 1) ** 2).sum()))
    assert np.abs(found_by(algorithm) - 1).max() < 0.2


def cart_pole(parameters: np.ndarray, trial: Trial) -> float:
    """The return of a linear policy, in plain floats: numpy takes longer for so few."""
    weights, total = parameters.tolist(), 0.0
    environment = gymnasium.make("CartPole-v1").unwrapped
    observation, _ = environment.reset(seed=trial.seed)
    while total < 500:
        a, b, c, d = observation.tolist()
        action = int(a * weights[0] + b * weights[1] + c * weights[2] + d * weights[3] > 0)
        observation, reward, terminated, _, _ = environment.step(action)
        total += float(reward)
        if terminated:
            break
    return total


def solves_cart_pole(seed: int) -> None:
    algorithm = Genetic(4, population=20, parents=5, sigma=0.3, initial_sigma=1.0, validated=3, episodes=3, noise=NOISE,
                        seed=seed)  # fmt: skip
    run(algorithm, 5, cart_pole)
    returns = [cart_pole(found_by(algorithm), Trial(derive(1234, episode))) for episode in range(20)]
    assert np.mean(returns) >= 475  # as registered in Gymnasium


def test_it_solves_cart_pole_in_five_generations_of_twenty() -> None:
    solves_cart_pole(0)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_it_solves_cart_pole_with_other_seeds(seed: int) -> None:
    solves_cart_pole(seed)


def test_a_candidate_is_one_number_of_a_range() -> None:
    algorithm = genetic()
    asked: list[range] = []
    for _ in range(3):
        asked.append(algorithm.ask(12))
        algorithm.tell(asked[-1], evaluated(algorithm, asked[-1]))
    two_best, with_elite = 2 * 3, 3 * 3  # further episodes, beside the children
    assert asked == [range(12), range(12, 12 + two_best + 12), range(30, 30 + with_elite + 12)]


@pytest.mark.parametrize("fitness", [noisy_sphere, lambda x, trial: 1.0], ids=["different", "equal"])
def test_results_do_not_depend_on_the_order_of_arrival_nor_on_the_pieces(fitness: Callable[..., float]) -> None:
    in_order, shuffled = genetic(), genetic()
    generator = random.Random(0)
    while in_order.generation < 8:
        candidates = in_order.ask(12)
        assert shuffled.ask(12) == candidates
        outcomes = evaluated(in_order, candidates, fitness)
        in_order.tell(candidates, outcomes)
        pairs = list(zip(candidates, outcomes, strict=True))
        generator.shuffle(pairs)
        while pairs:
            piece, pairs = pairs[:4], pairs[4:]
            shuffled.tell([number for number, _ in piece], [outcome for _, outcome in piece])
        assert same(in_order, shuffled)


def test_a_generation_goes_on_without_those_that_were_dropped() -> None:
    algorithm = genetic()
    for generation in range(6):
        candidates = algorithm.ask(12)
        assert algorithm.generation == generation
        told = [number for number in candidates if number % 5]
        algorithm.tell(told, evaluated(algorithm, told))
        algorithm.drop([number for number in candidates if number % 5 == 0])
    assert len(algorithm._generations) == 1


def test_a_generation_of_which_nothing_came_back_is_made_again() -> None:
    algorithm = run(genetic(), 1)
    first = algorithm.ask(12)
    algorithm.drop(first)
    again = algorithm.ask(12)
    assert (len(again), algorithm.generation) == (12, 1)
    algorithm.tell(again, evaluated(algorithm, again))
    algorithm.ask(12)
    assert algorithm.generation == 2


def test_stragglers_that_are_carried_over_count_in_a_later_generation() -> None:
    algorithm = genetic()
    late: list[tuple[int, Outcome]] = []
    for _ in range(6):
        candidates = algorithm.ask(12)
        outcomes = evaluated(algorithm, candidates)
        now = [*late, *zip(candidates[:-2], outcomes[:-2], strict=True)]
        late = list(zip(candidates[-2:], outcomes[-2:], strict=True))
        algorithm.tell([number for number, _ in now], [outcome for _, outcome in now])
    algorithm.ask(12)
    assert algorithm.generation == 6
    assert len(algorithm._generations) <= 3


def test_steady_state_selects_after_each_population_of_tells() -> None:
    algorithm = genetic()
    evaluators = {}
    under_way: list[int] = []
    generator = random.Random(1)
    for _ in range(400):
        for number in algorithm.ask(5 - len(under_way)):
            under_way.append(number)
            evaluators[number] = algorithm.evaluator()
        number = under_way.pop(generator.randrange(5))
        algorithm.tell([number], [evaluators[number](noisy_sphere, number, Trial(number))])
    assert 400 // 21 <= algorithm.generation <= 400 // 12
    assert algorithm.figures()["elite"] > -0.5


@pytest.mark.parametrize("num_told", [0, 3, 20])
def test_it_goes_on_from_a_state_in_the_middle_as_if_nothing_had_been(num_told: int) -> None:
    first = run(genetic(seed=3), 3)
    candidates = first.ask(12)
    outcomes = evaluated(first, candidates)
    first.tell(candidates[:num_told], outcomes[:num_told])
    second = genetic(seed=3)
    second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
    assert [outcome.fitness for outcome in evaluated(second, candidates)] == [outcome.fitness for outcome in outcomes]
    for algorithm in (first, second):
        algorithm.tell(candidates[num_told:], outcomes[num_told:])
        run(algorithm, 7)
    assert same(first, second)


def test_candidates_under_way_from_before_a_selection_can_be_evaluated_after_resumption() -> None:
    first = run(genetic(), 2)
    candidates = first.ask(12)
    outcomes = evaluated(first, candidates)
    first.tell(candidates[:-3], outcomes[:-3])
    first.ask(12)  # the last three are carried over
    second = genetic()
    second.load_state_dict(first.state_dict())
    late = [outcome.fitness for outcome in evaluated(second, candidates[-3:])]
    assert late == [outcome.fitness for outcome in outcomes[-3:]]


def test_a_state_of_another_problem_is_refused() -> None:
    state = genetic().state_dict()
    with pytest.raises(ValueError, match=r"dim 6 there and 7 here"):
        genetic(7).load_state_dict(state)
    with pytest.raises(ValueError, match=r"parents 4 there and 5 here"):
        genetic(parents=5).load_state_dict(state)


def test_the_evaluator_is_the_same_object_until_its_parents_change() -> None:
    algorithm = genetic()
    candidates = algorithm.ask(5)
    evaluator = algorithm.evaluator()
    algorithm.tell(candidates, evaluated(algorithm, candidates))
    assert algorithm.evaluator() is evaluator
    run(algorithm, 1)
    assert algorithm.evaluator() is not evaluator


def test_without_elites_it_is_plain_truncation() -> None:
    algorithm = run(genetic(elites=0, validated=0), 3)
    assert len(algorithm.ask(12)) == 12
    assert found_by(algorithm).shape == (6,)
    assert "elite" not in algorithm.figures()


def test_before_anything_is_told_it_has_found_nothing() -> None:
    algorithm = genetic()
    assert (algorithm.incumbent(), algorithm.genome) == (None, None)


@pytest.mark.parametrize(("changed", "message"), [
    ({"parents": 13}, r"elites <= validated <= parents <= population.*1, 2, 13, 12; .* smaller parents="),
    ({"elites": 3}, r"they are 3, 2, 4, 12"),
    ({"sigma": 0.0}, r"sigma and initial_sigma must be more than 0, not 0.0"),
    ({"sigma_decay": 1.5}, r"sigma_decay must be more than 0 and at most 1, not 1.5"),
    ({"episodes": 0}, r"episodes must be at least 1"),
    ({"noise": NoiseTable(5)}, r"6 numbers does not fit into a noise table of 5"),
])  # fmt: skip
def test_arguments_that_cannot_be_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        genetic(**changed)


def test_a_candidate_that_was_never_asked_for_is_refused() -> None:
    algorithm = genetic()
    algorithm.ask(12)
    with pytest.raises(ValueError, match="candidate 12 is not under way"):
        algorithm.tell([12], [Outcome(0.0)])
