"""Optimisers from outside in `evaluate`: generations and steady state, resumed, with stragglers that are dropped."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropewalk.population.algorithms.map_elites import MAPElites
from ropewalk.population.archives.grid_archive import GridArchive
from ropewalk.population.evaluating import evaluate
from ropewalk.population.outcome import Outcome


def bowl(x: Any) -> Outcome:
    return Outcome(-float(np.sum((np.asarray(x) - 1) ** 2)), np.asarray(x)[:2])


def sometimes(x: Any) -> Outcome:
    if x[0] > 0.5:
        raise ValueError("too far to the right")
    return bowl(x)


def cma(seed: int = 7) -> Any:
    cmaes = pytest.importorskip("cmaes", reason="runs cmaes' optimiser; pip install cmaes")
    return cmaes.CMA(np.zeros(3), 0.5, seed=seed, population_size=6)


def test_evaluate_takes_an_optimiser_as_it_is() -> None:
    run = evaluate(cma(), bowl, generations=40)
    assert bowl(run.algorithm.incumbent()).fitness > -1e-3
    assert run.evaluations == 240


def test_it_is_resumed_from_a_checkpoint_with_the_same_result(tmp_path: Path) -> None:
    whole = evaluate(cma(), bowl, generations=6).algorithm
    evaluate(cma(), bowl, generations=3, checkpoint=tmp_path)
    resumed = evaluate(cma(), bowl, generations=6, checkpoint=tmp_path).algorithm
    np.testing.assert_array_equal(resumed.optimiser.mean, whole.optimiser.mean)


def test_evaluations_that_always_fail_are_dropped_and_the_rest_is_told() -> None:
    algorithm = evaluate(cma(), sometimes, generations=10, failures="drop").algorithm
    assert algorithm.generation == 10


@pytest.mark.lab  # which installs it
@pytest.mark.parametrize("mode", ["generation", "steady"])
def test_nevergrad_runs_in_both_modes(mode: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nevergrad = pytest.importorskip("nevergrad", reason="runs nevergrad's optimisers; pip install nevergrad")
    optimiser = nevergrad.optimizers.TwoPointsDE(nevergrad.p.Array(shape=(3,)), budget=400, num_workers=4)
    optimiser.parametrization.random_state = np.random.RandomState(1)
    run = evaluate(optimiser, bowl, generations=90, mode=mode)
    assert bowl(run.algorithm.incumbent()).fitness > -0.5


@pytest.mark.lab  # which installs it
@pytest.mark.parametrize("mode", ["generation", "steady"])
def test_a_budget_of_nevergrad_is_used_up_and_all_of_it_is_told(mode: Any) -> None:
    """The run ended once the last candidates were asked for: the last generation was never evaluated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nevergrad = pytest.importorskip("nevergrad", reason="runs nevergrad's optimisers; pip install nevergrad")
    optimiser = nevergrad.optimizers.TwoPointsDE(nevergrad.p.Array(shape=(3,)), budget=18, num_workers=4)
    run = evaluate(optimiser, bowl, mode=mode)
    assert (optimiser.num_ask, optimiser.num_tell, run.table[-1]["evaluations"]) == (18, 18, 18)


@pytest.mark.parametrize("mode", ["generation", "steady"])
def test_a_whole_population_is_collected_in_both_modes(mode: Any) -> None:
    run = evaluate(cma(), bowl, generations=10, mode=mode)
    assert run.algorithm.generation == 10


@pytest.mark.parametrize("mode", ["generation", "steady"])
def test_map_elites_runs_in_both_modes_and_resumes(mode: Any, tmp_path: Path) -> None:
    def make() -> MAPElites:
        return MAPElites(3, GridArchive((6, 6), [(-2, 2), (-2, 2)]), population=20, seed=3)

    whole = evaluate(make(), bowl, generations=6, mode=mode).algorithm
    evaluate(make(), bowl, generations=3, mode=mode, checkpoint=tmp_path)
    resumed = evaluate(make(), bowl, generations=6, mode=mode, checkpoint=tmp_path).algorithm
    np.testing.assert_array_equal(resumed.archive.solutions, whole.archive.solutions)
    assert resumed.archive.coverage > 0.5
