"""Novelty search against one that is written as the paper has it, and in a maze that deceives."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from ropewalk.pool.seeds import derive
from ropewalk.population.algorithm import Algorithm
from ropewalk.population.algorithms.genetic import Genetic
from ropewalk.population.algorithms.novelty import NoveltyES
from ropewalk.population.algorithms.openai_es import OpenAIES
from ropewalk.population.noise_table import NoiseTable
from ropewalk.population.outcome import Outcome
from ropewalk.population.trial import Trial
from tests.population import maze

NOISE = NoiseTable(1 << 14, seed=2)
BUDGET = 3000


def behaviour_of(outcome: Outcome) -> np.ndarray:
    assert outcome.behaviour is not None
    return outcome.behaviour


def walk(parameters: np.ndarray, trial: Trial) -> Outcome:
    return maze.walk(parameters)


def evaluated(algorithm: Algorithm[int], candidates: Sequence[int]) -> list[Outcome]:
    evaluator = algorithm.evaluator()
    return [evaluator(walk, candidate, Trial(candidate)) for candidate in candidates]


def run(algorithm: NoveltyES, generations: int) -> NoveltyES:
    while algorithm.generation < generations:
        candidates = algorithm.ask(algorithm.population)
        algorithm.tell(candidates, evaluated(algorithm, candidates))
    return algorithm


def novelty_es(**changed: Any) -> NoveltyES:
    settings: dict[str, Any] = {"population": 8, "members": 2, "sigma": 0.2, "learning_rate": 0.2, "spread": 0.3,
                                "k": 3, "episodes": 1, "noise": NOISE}  # fmt: skip
    settings |= changed
    return NoveltyES(maze.DIM, **settings)


def same(one: Any, other: Any) -> bool:
    """Whether two algorithms, or parts of their states, are equal."""
    if isinstance(one, NoveltyES):
        return same(one.state_dict(), other.state_dict())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return np.array_equal(one, other)


# In a maze


def arrives(algorithm: Algorithm[int]) -> bool:
    """Whether any candidate reaches the goal within the budget."""
    num_evaluated = 0
    while num_evaluated < BUDGET:
        candidates = algorithm.ask(algorithm.population)
        outcomes = evaluated(algorithm, candidates)
        if any(maze.arrived(outcome) for outcome in outcomes):
            return True
        num_evaluated += len(candidates)
        algorithm.tell(candidates, outcomes)
    return False


IN_THE_MAZE: dict[str, Any] = {"population": 20, "weight_decay": 0.05, "noise": NoiseTable(1 << 16)}
SEEKING: dict[str, Any] = IN_THE_MAZE | {"members": 5, "spread": 0.2, "episodes": 1}


@pytest.mark.parametrize("seed", range(3))
def test_novelty_finds_the_way_out_of_the_dead_end(seed: int) -> None:
    assert arrives(NoveltyES(maze.DIM, method="ns", sigma=0.2, learning_rate=0.2, **SEEKING, seed=seed))


def test_novelty_and_fitness_together_find_it_in_most_runs() -> None:
    """Half of its gradient pulls into the dead end: of seeds 0 to 4, four arrive within the budget."""
    runs = [NoveltyES(maze.DIM, method="nsr", sigma=0.3, learning_rate=0.3, **SEEKING, seed=seed) for seed in range(3)]
    assert sum(arrives(algorithm) for algorithm in runs) >= 2


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))])
def test_fitness_alone_stays_in_the_dead_end(seed: int) -> None:
    for step in (0.2, 0.3):
        assert not arrives(OpenAIES(maze.DIM, sigma=step, learning_rate=step, **IN_THE_MAZE, seed=seed))
    assert not arrives(Genetic(maze.DIM, population=20, parents=6, validated=1, episodes=1, sigma=0.2,
                               noise=NoiseTable(1 << 16), seed=seed))  # fmt: skip


# Step by step


def reference(method: str, generations: int, seed: int) -> tuple[list[float], list[np.ndarray]]:
    """Fitnesses as they come, and the members' parameters; one centre after the other, all sums in float64."""
    dim, half, sigma, rate = maze.DIM, 4, 0.2, 0.2

    def noise(of: int, number: int) -> np.ndarray:
        return NOISE.slice(NOISE.index(of, number, dim), dim).astype(float)

    members: list[dict[str, Any]] = [
        {"theta": 0.3 * noise(derive(seed, 1), number), "m": 0.0, "v": 0.0, "t": 0, "b": None} for number in range(2)
    ]
    archive: list[np.ndarray] = []
    fitnesses: list[float] = []
    share, best, since_best, number = {"ns": 0.0, "nsr": 0.5, "nsra": 1.0}[method], -np.inf, 0, 0
    unknown = [0, 1]

    def novelty(behaviour: np.ndarray) -> float:
        return float(np.mean(sorted(np.linalg.norm(np.array(archive) - behaviour, axis=1))[:3]))

    def ranks(values: list[float]) -> np.ndarray:
        array = np.array(values)
        return np.array([(array < value).sum() + ((array == value).sum() - 1) / 2 for value in array]) / 7 - 0.5

    for generation in range(generations):
        number += (number + len(unknown)) % 2
        chance = derive(derive(seed, 2), generation) / 2**64
        if generation == 0:
            chosen = int(chance * 2)
        else:
            weights = [novelty(member["b"]) for member in members]
            chosen = int(chance * sum(weights) >= weights[0])
        theta = members[chosen]["theta"]
        centres = [maze.walk(members[at]["theta"].astype(np.float32)) for at in unknown]
        first = number + len(unknown)
        draws = [noise(seed, (first + at) // 2) for at in range(0, 2 * half, 2)]
        perturbed = [maze.walk((theta + sign * sigma * draw).astype(np.float32)) for draw in draws for sign in (1, -1)]
        fitnesses += [outcome.fitness for outcome in centres + perturbed]
        number = first + 2 * half
        for at, outcome in zip(unknown, centres, strict=True):
            members[at]["b"] = behaviour_of(outcome)
            archive.append(behaviour_of(outcome))
            if outcome.fitness > best:
                best, since_best = outcome.fitness, 0
                share = min(1.0, share + 0.05) if method == "nsra" else share
            else:
                since_best += 1
                if since_best == 2:
                    since_best, share = 0, max(0.0, share - 0.05) if method == "nsra" else share
        weights = share * ranks([outcome.fitness for outcome in perturbed])
        weights = weights + (1 - share) * ranks([novelty(behaviour_of(outcome)) for outcome in perturbed])
        gradient = sum((weights[2 * at] - weights[2 * at + 1]) * draw for at, draw in enumerate(draws)) / 8
        member = members[chosen]
        member["t"] += 1
        member["m"] = 0.9 * member["m"] + 0.1 * gradient
        member["v"] = 0.999 * member["v"] + 0.001 * gradient**2
        corrected = rate * np.sqrt(1 - 0.999 ** member["t"]) / (1 - 0.9 ** member["t"])
        member["theta"] = theta + corrected * member["m"] / (np.sqrt(member["v"]) + 1e-8)
        unknown = [chosen]
    return fitnesses, [member["theta"] for member in members]


@pytest.mark.parametrize("method", ["ns", "nsr", "nsra"])
def test_it_takes_the_steps_of_the_paper(method: str) -> None:
    algorithm = novelty_es(method=method, patience=2, seed=4)
    seen: list[float] = []
    while algorithm.generation < 12:
        candidates = algorithm.ask(8)
        outcomes = evaluated(algorithm, candidates)
        seen += [outcome.fitness for outcome in outcomes]
        algorithm.tell(candidates, outcomes)
    fitnesses, members = reference(method, 12, 4)
    assert np.allclose(seen, fitnesses, atol=1e-3)
    for member, expected in zip(algorithm._members, members, strict=True):
        assert np.allclose(member.parameters, expected, atol=1e-4)


# In the loop


def test_results_do_not_depend_on_the_order_of_arrival_nor_on_the_pieces() -> None:
    in_order, shuffled = novelty_es(), novelty_es()
    generator = random.Random(0)
    while in_order.generation < 8:
        candidates = in_order.ask(8)
        assert shuffled.ask(8) == candidates
        outcomes = evaluated(in_order, candidates)
        in_order.tell(candidates, outcomes)
        pairs = list(zip(candidates, outcomes, strict=True))
        generator.shuffle(pairs)
        while pairs:
            piece, pairs = pairs[:3], pairs[3:]
            shuffled.tell([number for number, _ in piece], [outcome for _, outcome in piece])
        assert same(in_order, shuffled)


@pytest.mark.parametrize("num_told", [0, 2, 5])
def test_it_goes_on_from_a_state_in_the_middle_as_if_nothing_had_been(num_told: int) -> None:
    first = run(novelty_es(method="nsra", seed=3), 4)
    candidates = first.ask(8)
    outcomes = evaluated(first, candidates)
    first.tell(candidates[:num_told], outcomes[:num_told])
    second = novelty_es(method="nsra", seed=3)
    second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
    assert [outcome.fitness for outcome in evaluated(second, candidates)] == [outcome.fitness for outcome in outcomes]
    for algorithm in (first, second):
        algorithm.tell(candidates[num_told:], outcomes[num_told:])
        run(algorithm, 9)
    assert same(first, second)


def test_a_generation_goes_on_without_those_that_were_dropped_or_failed() -> None:
    algorithm = novelty_es()
    for generation in range(5):
        candidates = algorithm.ask(8)
        assert algorithm.generation == generation
        outcomes = evaluated(algorithm, candidates)
        outcomes[-1] = Outcome(-100.0, failure="it fell")
        algorithm.tell(candidates[:1], outcomes[:1])
        algorithm.tell(candidates[3:], outcomes[3:])
        algorithm.drop(candidates[1:3])
    assert algorithm.generation == 5


def test_a_centre_that_was_dropped_is_evaluated_in_the_next_generation() -> None:
    algorithm = novelty_es()
    candidates = algorithm.ask(8)
    algorithm.tell(candidates[2:], evaluated(algorithm, candidates[2:]))
    algorithm.drop(candidates[:2])
    assert (algorithm.generation, len(algorithm.archive)) == (1, 0)
    assert len(algorithm.ask(8)) == 8 + 2


def test_stragglers_of_before_the_last_step_are_skipped_and_counted() -> None:
    algorithm = run(novelty_es(), 1)
    candidates = algorithm.ask(8)
    outcomes = evaluated(algorithm, candidates)
    algorithm.tell(candidates[:-2], outcomes[:-2])
    later = algorithm.ask(8)
    assert algorithm.generation == 2
    algorithm.tell([*candidates[-2:], *later], [*outcomes[-2:], *evaluated(algorithm, later)])
    assert algorithm.figures()["stale"] == pytest.approx(2 / (2 + len(later)))


def test_in_steady_state_it_steps_after_each_population_of_tells() -> None:
    algorithm = novelty_es()
    under_way: list[tuple[int, Outcome]] = []
    for _ in range(150):
        candidates = algorithm.ask(3 - len(under_way))
        under_way += zip(candidates, evaluated(algorithm, candidates), strict=True)
        number, outcome = under_way.pop(0)
        algorithm.tell([number], [outcome])
    assert 150 // 13 <= algorithm.generation <= 150 // 8


def test_the_share_of_fitness_falls_while_nothing_gets_better() -> None:
    algorithm = novelty_es(method="nsra", patience=2, share_step=0.25)
    shares: list[float] = []
    while algorithm.generation < 12:
        candidates = algorithm.ask(8)
        algorithm.tell(candidates, [Outcome(0.0, outcome.behaviour) for outcome in evaluated(algorithm, candidates)])
        shares.append(algorithm.share)
    assert shares[0] == 1.0 and shares[-1] == 0.0
    assert all(before >= after for before, after in pairwise(shares))


def test_a_fitness_without_a_behaviour_is_refused() -> None:
    algorithm = novelty_es()
    with pytest.raises(ValueError, match=r"return ropewalk.population.Outcome\(fitness, behaviour=...\)"):
        algorithm.tell(algorithm.ask(1), [Outcome(1.0)])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_behaviour_that_is_not_finite_is_refused_before_anything_is_learnt_from_it(bad: float) -> None:
    """It counted as the most novel of its generation, and in the archive it made every later novelty NaN."""
    algorithm = novelty_es()
    candidates = algorithm.ask(algorithm.population)
    outcomes = evaluated(algorithm, candidates)
    before = algorithm.state_dict()
    behaviour = behaviour_of(outcomes[3])
    outcomes[3].behaviour = np.full_like(behaviour, bad)
    with pytest.raises(ValueError, match=r"a behaviour is not finite: \[(nan|inf), "):
        algorithm.tell(candidates, outcomes)
    assert same(algorithm.state_dict(), before)
    outcomes[3].behaviour = behaviour
    algorithm.tell(candidates, outcomes)
    assert algorithm.generation == 1


def test_what_it_has_found_is_the_best_centre() -> None:
    assert novelty_es().incumbent() is None
    algorithm = run(novelty_es(), 10)
    incumbent = algorithm.incumbent()
    assert incumbent is not None
    assert maze.walk(incumbent).fitness == pytest.approx(algorithm.figures()["best_centre"])


def test_a_state_of_another_problem_is_refused() -> None:
    with pytest.raises(ValueError, match=r"method 'ns' there and 'nsr' here"):
        novelty_es().load_state_dict(novelty_es(method="ns").state_dict())


@pytest.mark.parametrize(("changed", "message"), [
    ({"population": 9}, "population must be even, as noise is mirrored, not 9"),
    ({"method": "nrs"}, "method must be one of 'ns', 'nsr', 'nsra', not 'nrs'"),
    ({"members": 0}, "members, episodes and patience must be at least 1, not 0, 1 and 50"),
    ({"sigma": 0.0}, "sigma must be more than 0, spread and weight_decay 0 or more, not 0.0"),
    ({"share_step": 2.0}, "share_step must be more than 0 and at most 1, not 2.0"),
    ({"noise": NoiseTable(5)}, "6 numbers does not fit into a noise table of 5"),
])  # fmt: skip
def test_arguments_that_cannot_be_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        novelty_es(**changed)
