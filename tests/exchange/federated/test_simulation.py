"""The simulation against encoders and decoders, and the claims of GD-SEC on convex problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.buckets import BucketEntry, Layout
from ropewalk.exchange.compressors.gd_sec import GDSEC
from ropewalk.exchange.federated.problems import LinearRegression, Problem, shard
from ropewalk.exchange.federated.simulation import FederatedRun, Federation
from ropewalk.exchange.presets import PRESETS, gradient_descent, no_error_correction, top_j
from tests.exchange.compressors.gd_sec_fleet import Fleet
from tests.exchange.federated.bundled import breast_cancer, digits_parity, digits_softmax


def small_problem(num_workers: int = 6, num_features: int = 12) -> LinearRegression:
    made = torch.Generator().manual_seed(3)
    features = torch.randn(50, num_features, generator=made, dtype=torch.float64) * torch.logspace(0, -2, num_features)
    return LinearRegression(shard(features, features.sum(1) + features[:, 0] ** 2, num_workers), 0.01)


compressors = {name: make() for name, make in PRESETS.items()} | {
    "paper's form": GDSEC(xi=30.0, beta=0.02),
    "by turns": GDSEC(c=10, speakers=2),
    "resting by turns": GDSEC(c=10, speakers=2, silent="rests"),
    "quantized": GDSEC(c=10, values="levels(7)"),
    "resting and quantized": GDSEC(c=1, values="levels(7)", silent="rests"),
    "fixed beta": GDSEC(c=300, beta=None),
}


@pytest.mark.parametrize("name", compressors)
def test_a_row_is_what_an_encoder_would_be(name: str) -> None:
    compressor, problem = compressors[name], small_problem()
    layout = Layout((BucketEntry("theta", (problem.num_weights,), torch.float64),))
    fleet = Fleet(compressor, problem.num_workers, layout)
    federation = Federation(problem, compressor, drop_out=0.2)
    theta = problem.start()
    for _ in range(20):
        asked = federation.asked()
        silent = frozenset(rank for rank in range(problem.num_workers) if not asked[rank])
        ghat = fleet.exchange(list(problem.gradients(theta)), silent)
        record = federation.round(asked)
        assert record.uplink_bytes == sum(len(said.data) for said in fleet.messages)
        assert record.num_speaking == sum(len(said.data) > 0 for said in fleet.messages)
        moved = -federation.alpha * ghat
        theta = theta + moved
        fleet.applied = ghat if compressor.xi is None else moved
        for rows, states in ((federation.memories, fleet.memories), (federation.errors, fleet.errors)):
            torch.testing.assert_close(rows, torch.stack(states), rtol=0, atol=1e-12)
        torch.testing.assert_close(federation.theta, theta, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [pytest.param(digits_parity, marks=pytest.mark.soak), breast_cancer])
def test_gd_sec_takes_a_few_percent_of_the_bytes_of_gradient_descent_and_its_rounds(
    make: Callable[[], Problem],
) -> None:
    """Sum form, c = 100, beta = 0.01; to an objective error of 1e-5. Without error correction it does not get there.

    Measured: digits 759 rounds against 726 and 3.0 % of the bytes, breast cancer 681 against 638 and 3.0 %.
    """
    problem = make()
    num_rounds = _rounds_of_gradient_descent(problem, 1000)
    alpha = 1 / problem.smoothness
    sparse = _run(problem, GDSEC(xi=100 / alpha, alpha=alpha, beta=0.01), 1000)
    assert sparse.reached
    assert sparse.num_rounds <= 1.1 * num_rounds
    assert sparse.uplink_bytes <= 0.05 * num_rounds * problem.num_workers * problem.num_weights * 8
    without = _run(problem, no_error_correction(c=100, beta=0.01), int(1.1 * num_rounds))
    assert without.objective_error > 1e-2


@pytest.mark.soak
def test_it_holds_for_softmax_too_and_for_workers_that_are_quite_unlike() -> None:
    for unlike, share in ((0.0, 0.02), (1.0, 0.05)):
        problem = digits_softmax(unlike=unlike)
        num_rounds, sparse = _rounds_of_gradient_descent(problem, 2000), _run(problem, GDSEC(c=100, beta=0.01), 2000)
        assert sparse.reached
        assert sparse.num_rounds <= 1.1 * num_rounds
        assert sparse.uplink_bytes <= share * num_rounds * problem.num_workers * problem.num_weights * 8


def test_thousands_of_workers_of_which_few_are_asked_and_some_drop_out() -> None:
    """Who is not asked is represented by its memory; the weights come near the optimum all the same."""
    made = torch.Generator().manual_seed(0)
    features = torch.randn(2000, 20, generator=made, dtype=torch.float64)
    truth = torch.randn(20, generator=made, dtype=torch.float64)
    targets = features @ truth + 0.1 * torch.randn(2000, generator=made, dtype=torch.float64)
    problem = LinearRegression(shard(features, targets, 1000, unlike=1.0), 0.01)
    compressor = GDSEC(c=1, beta=0.5, silent="rests")
    federation = Federation(problem, compressor, participation=0.25, drop_out=0.1, alpha=0.2 / problem.smoothness)
    first = federation.round()
    assert first.num_asked == pytest.approx(0.25 * 0.9 * 1000, abs=50)
    start = problem.value(problem.start()) - problem.value(problem.optimum)
    run = federation.run(60)
    assert run.objective_error < 1e-2 * start
    torch.testing.assert_close(federation.memory, federation.memories.sum(0), rtol=0, atol=1e-10)


def test_a_worker_that_keeps_what_it_computed_loses_nothing_by_silence() -> None:
    problem = small_problem()
    federation = Federation(problem, GDSEC(c=1, beta=0.1), participation=0.5, alpha=0.2 / problem.smoothness)
    applied, wanted = torch.zeros(2, problem.num_weights, dtype=torch.float64)
    for _ in range(40):
        wanted = wanted + problem.gradients(federation.theta).sum(0)
        federation.round()
        assert federation.applied is not None
        applied = applied + federation.applied
    torch.testing.assert_close(applied, wanted - federation.errors.sum(0), rtol=0, atol=1e-10)


def test_draws_are_those_of_the_seed() -> None:
    def run(seed: int) -> FederatedRun:
        federation = Federation(small_problem(), GDSEC(c=1), batch=3, participation=0.5, drop_out=0.2, seed=seed)
        return federation.run(10)

    assert run(1).trace == run(1).trace
    assert run(1).trace != run(2).trace


def test_a_run_that_diverges_ends() -> None:
    problem = small_problem()
    run = Federation(problem, top_j(1.0), alpha=50 / problem.smoothness).run(1000)
    assert run.num_rounds < 100
    assert not run.reached


def test_what_cannot_be_simulated_is_refused() -> None:
    problem = small_problem()
    with pytest.raises(ExchangeInvalid, match="participation"):
        Federation(problem, GDSEC(), participation=0)
    with pytest.raises(ExchangeInvalid, match="factors"):
        Federation(problem, replace(GDSEC(c=1), factors={"theta": 2.0}))


def _rounds_of_gradient_descent(problem: Problem, max_rounds: int) -> int:
    """To an objective error of 1e-5; each takes 8 bytes for each weight of each worker."""
    theta, least = problem.start(), problem.value(problem.optimum)
    for step in range(max_rounds):
        theta = theta - problem.gradients(theta).sum(0) / problem.smoothness
        if problem.value(theta) - least <= 1e-5:
            return step + 1
    raise AssertionError(f"gradient descent does not get there within {max_rounds} rounds")


def test_gradient_descent_is_a_preset() -> None:
    problem = small_problem()
    run = Federation(problem, gradient_descent()).run(1000, 1e-5)
    assert run.num_rounds == _rounds_of_gradient_descent(problem, 1000)
    header_bytes = 3
    assert run.uplink_bytes == run.num_rounds * problem.num_workers * (problem.num_weights * 8 + header_bytes)


def _run(problem: Problem, compressor: GDSEC, max_rounds: int) -> FederatedRun:
    return Federation(problem, compressor).run(max_rounds, 1e-5)
