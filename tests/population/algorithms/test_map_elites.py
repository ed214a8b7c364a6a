"""MAP-Elites: the reference step by step, the arm that it has to master, its state, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ropewalk.population.algorithms.emitters import Gaussian, IsoLine
from ropewalk.population.algorithms.map_elites import MAPElites
from ropewalk.population.archives.cvt_archive import CVTArchive
from ropewalk.population.archives.elite_archive import EliteArchive
from ropewalk.population.archives.grid_archive import GridArchive
from ropewalk.population.outcome import Outcome

REACH = [(-1.0, 1.0), (-1.0, 1.0)]


def arm(angles: np.ndarray) -> Outcome:
    """A planar arm of equal parts and length 1: reach each place with angles that are like one another."""
    heading = np.cumsum(angles)
    hand = np.array([np.cos(heading).mean(), np.sin(heading).mean()])
    return Outcome(-float(np.var(angles)), hand)


def run(algorithm: MAPElites, generations: int) -> None:
    for _ in range(generations):
        candidates = algorithm.ask(algorithm.population)
        algorithm.tell(candidates, [arm(x) for x in candidates])


def make(archive: EliteArchive | None = None, **options: Any) -> MAPElites:
    archive = archive or GridArchive((8, 8), REACH, qd_offset=-4.0)
    defaults: dict[str, Any] = {"population": 32, "bounds": (-np.pi, np.pi), "seed": 5}
    return MAPElites(8, archive, **{**defaults, **options})


@pytest.mark.parametrize("emitter", [Gaussian(0.2), IsoLine(0.05, 0.3)])
def test_it_takes_the_steps_of_the_plain_algorithm(emitter: Gaussian | IsoLine) -> None:
    """Figure 2 of the paper in batches, with a dict for an archive."""
    algorithm = make(emitter=emitter, num_random=40)
    run(algorithm, 6)

    elites: dict[tuple[int, int], tuple[float, np.ndarray]] = {}
    for number, size in enumerate([32, 8, 32, 32, 32, 32]):  # 40 random ones: a generation, and what is left
        rng = np.random.default_rng([5, number])
        if number < 2:
            batch = rng.uniform(-np.pi, np.pi, (size, 8))
        else:
            known = np.array([x for _, x in elites.values()])
            first = known[rng.integers(len(known), size=size)]
            if isinstance(emitter, Gaussian):
                batch = first + 0.2 * rng.standard_normal((size, 8))
            else:
                second = known[rng.integers(len(known), size=size)]
                noise, step = rng.standard_normal((size, 8)), rng.standard_normal((size, 1))
                batch = first + 0.05 * noise + 0.3 * step * (second - first)
        for x in np.clip(batch, -np.pi, np.pi):
            outcome = arm(x)
            assert outcome.behaviour is not None
            i, j = np.minimum((outcome.behaviour + 1) / 2 * 8, 7).astype(int).tolist()
            if (i, j) not in elites or elites[i, j][0] < outcome.fitness:
                elites[i, j] = (outcome.fitness, x)

    assert algorithm.archive.niches.tolist() == [8 * i + j for i, j in elites]
    np.testing.assert_array_equal(algorithm.archive.fitnesses, [p for p, _ in elites.values()])
    np.testing.assert_array_equal(algorithm.archive.solutions, [x for _, x in elites.values()])


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))])
@pytest.mark.parametrize("kind", ["grid", "cvt"])
def test_it_masters_the_arm_in_10000_evaluations(kind: str, seed: int) -> None:
    grid, cvt = GridArchive((10, 10), REACH), CVTArchive(100, REACH)
    algorithm = make(grid if kind == "grid" else cvt, population=100, seed=seed, emitter=IsoLine(0.05, 0.3))
    run(algorithm, 100)
    figures = algorithm.figures()
    # A disc in a square has 0.785 of its area, and touches 88 of the 100 cells.
    assert figures["coverage"] >= 0.78
    assert np.median(algorithm.archive.fitnesses) > -0.02  # of random search: about -0.7
    assert figures["best_elite"] > -0.002


def test_random_search_does_not_master_it() -> None:
    algorithm = make(GridArchive((10, 10), REACH), population=100, num_random=10_000)
    run(algorithm, 100)
    assert np.median(algorithm.archive.fitnesses) < -0.5
    assert algorithm.figures()["coverage"] < 0.8


def test_a_restored_one_goes_on_with_the_same_bits() -> None:
    algorithm = make(CVTArchive(50, REACH, seed=2), num_random=40)
    run(algorithm, 2)
    again = make(CVTArchive(50, REACH, seed=3), num_random=40)  # the centroids are in the state
    again.load_state_dict(algorithm.state_dict())
    run(algorithm, 3)
    run(again, 3)
    np.testing.assert_array_equal(again.archive.solutions, algorithm.archive.solutions)
    assert (again.generation, again.figures()) == (algorithm.generation, algorithm.figures())


def test_several_pieces_and_candidates_that_never_come_are_survived() -> None:
    whole, pieces = make(), make()
    for _ in range(4):
        candidates, same = whole.ask(32), pieces.ask(32)
        np.testing.assert_array_equal(candidates, same)
        arrived = [x for number, x in enumerate(candidates) if number % 5]
        whole.tell(arrived, [arm(x) for x in arrived])
        for part in (arrived[:7], arrived[7:]):
            pieces.tell(part, [arm(x) for x in part])
    np.testing.assert_array_equal(pieces.archive.solutions, whole.archive.solutions)


def test_it_works_one_at_a_time_with_others_under_way() -> None:
    algorithm = make(num_random=10)
    under_way = list(algorithm.ask(8))
    for _ in range(600):
        x = under_way.pop(3)
        algorithm.tell([x], [arm(x)])
        under_way.extend(algorithm.ask(1))
    assert algorithm.generation == 600 // 32
    assert algorithm.figures()["coverage"] > 0.4


def test_failures_and_minus_infinity_enter_no_niche() -> None:
    algorithm = make()
    candidates = algorithm.ask(3)
    lost = [Outcome(-1e9, failure="ValueError"), Outcome(-np.inf, np.zeros(2)), Outcome(0.5, np.zeros(2))]
    algorithm.tell(candidates, lost)
    assert len(algorithm.archive) == 1
    best = algorithm.incumbent()
    assert best is not None
    np.testing.assert_array_equal(best, candidates[2])


def test_it_has_no_incumbent_at_first_and_is_random_while_nothing_entered() -> None:
    algorithm = make(num_random=4)
    assert algorithm.incumbent() is None
    assert len(algorithm.ask(32)) == 4
    assert len(algorithm.ask(32)) == 32


def test_solutions_are_of_the_kind_of_the_first_one() -> None:
    algorithm = MAPElites(np.full(3, 5, np.float32), GridArchive((2,), [(0, 1)]), population=4, initial_sigma=0.0)
    assert [x.tolist() for x in algorithm.ask(4)] == [[5.0] * 3] * 4
    algorithm.tell(algorithm.ask(1), [Outcome(1.0, np.zeros(1))])
    assert {x.dtype for x in algorithm.ask(4)} == {np.dtype(np.float32)} == {algorithm.archive.solutions.dtype}


def test_wrong_arguments_are_refused_with_rule_and_value() -> None:
    archive = GridArchive((2,), [(0, 1)])
    with pytest.raises(ValueError, match=r"vector of at least 1 number.*\(2, 2\)"):
        MAPElites(np.zeros((2, 2)), archive)
    with pytest.raises(ValueError, match="num_random must be at least 1, not 0"):
        MAPElites(2, archive, num_random=0)
    with pytest.raises(ValueError, match="low < high"):
        MAPElites(2, archive, bounds=(1, [0, 2]))
    # They ended in OverflowError at the first ask.
    for bounds in ((0, np.inf), (-np.inf, [0, 1]), (np.nan, 1), (-1e308, 1e308)):
        with pytest.raises(ValueError, match="bounds must be finite"):
            MAPElites(2, archive, bounds=bounds)
    with pytest.raises(ValueError, match="sigma must be above 0, not 0"):
        Gaussian(0)
    with pytest.raises(ValueError, match="line_sigma must be 0 or more, not -1"):
        IsoLine(0.1, -1)
    algorithm = MAPElites(2, archive)
    with pytest.raises(ValueError, match=r"return Outcome\(fitness, behaviour\) with 1 numbers"):
        algorithm.tell(algorithm.ask(1), [Outcome(1.0)])
    with pytest.raises(ValueError, match="the state has dim 2, and this algorithm has 3"):
        MAPElites(3, archive).load_state_dict(algorithm.state_dict())
