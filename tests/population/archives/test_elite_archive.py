"""Archives of elites against a loop over candidates, and against pyribs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.population.archives.cvt_archive import CVTArchive
from ropewalk.population.archives.elite_archive import EliteArchive
from ropewalk.population.archives.grid_archive import GridArchive

RANGES = [(-1.0, 1.0), (0.0, 2.0)]
CENTROIDS = np.random.default_rng(3).uniform([-1, 0], [1, 2], (12, 2))
KINDS: dict[str, Callable[[], EliteArchive]] = {
    "grid": lambda: GridArchive((3, 4), RANGES, qd_offset=-2.0),
    "cvt": lambda: CVTArchive(12, RANGES, centroids=CENTROIDS, qd_offset=-2.0),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def some(seed: int, n: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Solutions that are all different, few different fitnesses, and behaviours in and a little out of the ranges."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 3)), rng.integers(-2, 3, n).astype(float), rng.uniform([-1.2, -1], [1.2, 3], (n, 2))


def one_by_one(archive: EliteArchive, solutions: np.ndarray, fitnesses: np.ndarray, behaviours: np.ndarray) -> dict:
    """Figure 2 of Mouret and Clune, as it stands there."""
    niches = archive.niches_of(behaviours).tolist()
    elites: dict[int, tuple[float, list[float]]] = {}
    for x, p, c in zip(solutions.tolist(), fitnesses.tolist(), niches, strict=True):
        if c not in elites or elites[c][0] < p:
            elites[c] = (p, x)
    return elites


def elites_of(archive: EliteArchive) -> dict:
    rows = zip(archive.niches.tolist(), archive.fitnesses.tolist(), archive.solutions.tolist(), strict=True)
    return {niche: (fitness, solution) for niche, fitness, solution in rows}


@kinds
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 1000), cuts=st.lists(st.integers(0, 60), max_size=4))
def test_an_archive_is_that_of_adding_one_by_one_however_the_candidates_are_grouped(
    kind: str, seed: int, cuts: list[int]
) -> None:
    solutions, fitnesses, behaviours = some(seed)
    archive, whole = KINDS[kind](), KINDS[kind]()
    bounds = [0, *sorted(cuts), 60]
    counts = [archive.add(solutions[a:b], fitnesses[a:b], behaviours[a:b]) for a, b in pairwise(bounds)]
    whole.add(solutions, fitnesses, behaviours)
    expected = one_by_one(archive, solutions, fitnesses, behaviours)
    assert elites_of(archive) == elites_of(whole) == expected
    assert archive.niches.tolist() == whole.niches.tolist() == list(expected)  # rows are in the order of arrival
    assert sum(taken for taken, _ in counts) == len(archive) == len(expected)
    assert archive.coverage == len(expected) / 12
    assert archive.qd_score == pytest.approx(sum(p + 2 for p, _ in expected.values()))
    best = archive.best
    assert best is not None and archive.fitnesses[best] == fitnesses.max()


@kinds
def test_of_equal_ones_the_first_stays(kind: str) -> None:
    archive = KINDS[kind]()
    assert archive.add([[1.0], [2.0]], [0.5, 0.5], [[0, 1], [0, 1]]) == (1, 0)
    assert archive.add([[3.0]], [0.5], [[0, 1]]) == (0, 0)
    assert archive.solutions.tolist() == [[1.0]]
    assert archive.add([[4.0]], [0.6], [[0, 1]]) == (0, 1)
    assert archive.solutions.tolist() == [[4.0]]


@kinds
def test_a_restored_archive_goes_on_like_the_one_it_was_taken_from(kind: str) -> None:
    archive = KINDS[kind]()
    archive.add(*some(0))
    again = KINDS[kind]()
    again.load_state_dict(archive.state_dict())
    archive.add(*some(1))
    again.add(*some(1))
    assert elites_of(again) == elites_of(archive)
    np.testing.assert_array_equal(again.fitness_by_niche(), archive.fitness_by_niche())


def test_a_state_of_another_archive_is_refused() -> None:
    state = GridArchive((3, 4), RANGES).state_dict()
    with pytest.raises(ValueError, match=r"shape \[3, 4\], and this one has \[4, 3\]"):
        GridArchive((4, 3), RANGES).load_state_dict(state)
    with pytest.raises(ValueError, match="kind GridArchive, and this one has CVTArchive"):
        CVTArchive(12, RANGES).load_state_dict(state)
    with pytest.raises(ValueError, match="highs"):
        GridArchive((3, 4), [(-1, 1), (0, 5)]).load_state_dict(state)


def test_what_does_not_fit_is_refused() -> None:
    archive = GridArchive((3, 4), RANGES)
    with pytest.raises(ValueError, match=r"shape \(n, 2\).*not \(1, 3\)"):
        archive.add([[1.0]], [1.0], [[0, 0, 0]])
    with pytest.raises(ValueError, match=r"not finite: \[0\.0, nan\]"):
        archive.add([[1.0], [1.0]], [1.0, 1.0], [[0, 0], [0, np.nan]])
    with pytest.raises(ValueError, match="2 solutions came with 1 fitnesses and 1 behaviours"):
        archive.add([[1.0], [1.0]], [1.0], [[0, 0]])
    archive.add([[1.0]], [1.0], [[0, 0]])
    with pytest.raises(ValueError, match=r"solutions here have \(1,\) numbers, not \(2,\)"):
        archive.add([[1.0, 2.0]], [1.0], [[1, 2]])
    with pytest.raises(ValueError, match="low < high"):
        GridArchive((3,), [(1, 1)])
    with pytest.raises(ValueError, match="of one length, not 1 and 2"):
        GridArchive((3,), RANGES)
    with pytest.raises(ValueError, match="at least 1 part"):
        GridArchive((3, 0), RANGES)
    with pytest.raises(ValueError, match="num_samples must be at least num_niches"):
        CVTArchive(12, RANGES, num_samples=11)
    with pytest.raises(ValueError, match=r"centroids must have the shape \(3, 2\)"):
        CVTArchive(3, RANGES, centroids=CENTROIDS)


def test_centroids_are_spread_evenly_and_repeat_under_a_seed() -> None:
    archive = CVTArchive(16, [(0, 1), (0, 100)], seed=1)
    np.testing.assert_array_equal(archive.centroids, CVTArchive(16, [(0, 1), (0, 100)], seed=1).centroids)
    assert not np.array_equal(archive.centroids, CVTArchive(16, [(0, 1), (0, 100)], seed=2).centroids)
    points = np.random.default_rng(0).uniform([0, 0], [1, 100], (20_000, 2))
    shares = np.bincount(archive.niches_of(points), minlength=16) / len(points)
    random = CVTArchive(16, [(0, 1), (0, 100)], centroids=points[:16])
    shares_of_random = np.bincount(random.niches_of(points), minlength=16) / len(points)
    assert shares.std() < 0.25 / 16 < shares_of_random.std()  # 0.25: of a perfect share


# --- against pyribs ---------------------------------------------------------------------------------------------------


@kinds
def test_adding_gives_the_archive_of_pyribs(kind: str) -> None:
    archives = pytest.importorskip("ribs.archives", reason="pyribs is the reference; pip install ribs")
    if kind == "grid":
        reference = archives.GridArchive(solution_dim=3, dims=(3, 4), ranges=RANGES, qd_score_offset=-2.0)
    else:
        reference = archives.CVTArchive(solution_dim=3, centroids=CENTROIDS, ranges=RANGES, qd_score_offset=-2.0)
    archive = KINDS[kind]()
    for seed in range(3):
        solutions, fitnesses, behaviours = some(seed)
        behaviours = np.clip(behaviours, *np.transpose(RANGES))  # its CVT does not move behaviours into the ranges
        archive.add(solutions, fitnesses, behaviours)
        reference.add(solutions, fitnesses, behaviours)
        theirs = reference.data()
        ours = np.argsort(archive.niches)
        order = np.argsort(theirs["index"])
        np.testing.assert_array_equal(archive.niches[ours], theirs["index"][order])
        np.testing.assert_array_equal(archive.fitnesses[ours], theirs["objective"][order])
        np.testing.assert_array_equal(archive.solutions[ours], theirs["solution"][order])
        np.testing.assert_array_equal(archive.behaviours[ours], theirs["measures"][order])
        assert archive.coverage == reference.stats.coverage
        assert archive.qd_score == pytest.approx(float(reference.stats.qd_score))


@kinds
def test_whole_numbers_do_not_cut_the_solutions_that_come_after_them(kind: str) -> None:
    # The first solutions decided the dtype, and 7.5 became 7.
    archive = KINDS[kind]()
    archive.add([[7, 7]], [1.0], [[0.0, 1.0]])
    archive.add([[7.5, -0.25]], [2.0], [[0.0, 1.0]])
    assert archive.solutions.tolist() == [[7.5, -0.25]]
    assert archive.solutions.dtype == np.float64
