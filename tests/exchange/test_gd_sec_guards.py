"""The rule for beta * c, and the provable mode: constants, descent in every round, and faults that it sees."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import DescentViolated, ExchangeInvalid
from ropewalk.exchange.compressors.gd_sec import GDSEC
from ropewalk.exchange.federated.simulation import Federation
from ropewalk.exchange.gd_sec_guards import DescentMonitor, chosen_beta, provable_xi, stable_beta
from tests.exchange.compressors.gd_sec_fleet import Fleet, Quadratics, layout_of
from tests.exchange.federated.bundled import breast_cancer

NUMEL = layout_of().numel


@pytest.mark.parametrize(
    ("c", "momentum", "beta"), [(10, 0, 0.03), (100, 0, 0.015), (300, 0, 0.005), (100, 0.9, 0.0015), (0, 0, 0.03)]
)
def test_beta_is_chosen_for_c(c: float, momentum: float, beta: float) -> None:
    assert chosen_beta(c, momentum) == pytest.approx(beta)
    assert GDSEC(c=c, beta=None, momentum=momentum).memory_rate == pytest.approx(beta)
    assert stable_beta(beta, c, momentum, "raise") == beta


def test_beta_times_c_over_2_is_warned_of_clamped_or_refused() -> None:
    with pytest.warns(UserWarning, match=r"beta \* c = 5, and over 2 .* use beta <= 0\.02"):
        assert GDSEC(c=100, beta=0.05).memory_rate == 0.05
    assert GDSEC(c=100, beta=0.05, on_unstable="clamp").memory_rate == pytest.approx(0.02)
    with pytest.raises(ExchangeInvalid, match=r"over 0\.2 under momentum 0\.9"):
        GDSEC(c=100, beta=0.01, momentum=0.9, on_unstable="raise")
    # At the edge, whatever rounding makes of it.
    assert replace(GDSEC(c=100, beta=0.02, on_unstable="raise"), c=66.6).memory_rate == 0.02


def test_the_warning_is_at_the_line_that_asked_for_it() -> None:
    with pytest.warns(UserWarning, match="diverges") as caught:
        GDSEC(c=100, beta=0.05)
    assert caught[0].filename == __file__


def test_the_rule_is_where_training_ends() -> None:
    """With c = 100: beta * c = 1 arrives, 1.5 (the chosen one) too, and 20 does not."""
    problem = breast_cancer()
    errors = [
        Federation(problem, GDSEC(c=100, beta=beta, on_unstable="clamp" if beta is None else "warn")).run(200)
        for beta in (0.01, None)
    ]
    with pytest.warns(UserWarning, match="diverges"):
        unstable = GDSEC(c=100, beta=0.2)
    wild = Federation(problem, unstable).run(200)
    assert all(run.objective_error < 1e-3 for run in errors)
    assert not wild.objective_error < 1


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 4),
    step=st.floats(0.05, 0.95),
    beta=st.sampled_from([0.0, 0.1, 1.0]),
    linear=st.booleans(),
)
def test_descent_holds_in_every_round_of_the_provable_region(
    seed: int, size: int, step: float, beta: float, *, linear: bool
) -> None:
    problem = Quadratics.random(seed, size, NUMEL)
    alpha, mu = step / problem.smoothness, problem.strong_convexity if linear else 0.0
    xi = provable_xi(alpha, problem.smoothness, mu)
    monitor = DescentMonitor(alpha, problem.smoothness, xi, mu, problem.optimum)
    fleet = Fleet(GDSEC(xi=xi, alpha=alpha, beta=beta), size)
    theta = torch.ones(NUMEL, dtype=torch.float64)
    potentials: list[float] = []
    for _ in range(40):
        gradients = problem.gradients(theta)
        potentials.append(monitor.check(theta, problem.value(theta), torch.stack(gradients).sum(0)))
        moved = -alpha * fleet.exchange(gradients)
        theta, fleet.applied = theta + moved, moved
    assert monitor.num_rounds == 40
    if linear:
        assert potentials[-1] <= (1 - alpha * mu) ** 39 * potentials[0] * (1 + 1e-9)
    else:
        assert potentials == sorted(potentials, reverse=True)


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_v_is_what_the_proof_says_and_so_is_what_it_may_be(mu: float) -> None:
    """V = f - f* + b1 |d^k|^2 + b2 |d^{k-1}|^2, with the constants worked out by hand."""
    alpha, smoothness, xi, optimum = 0.25, 1.0, 1.0, -2.0
    monitor = DescentMonitor(alpha, smoothness, xi, mu, optimum)
    q = 1 - alpha * mu
    b1, b2 = (0.5, 0.25) if not mu else (0.25 * (1 / q + 1 / q**2), 0.25 / q)
    thetas = [torch.tensor([3.0, 0.0]), torch.tensor([3.0, 2.0]), torch.tensor([2.0, 2.0]), torch.tensor([2.0, 2.0])]
    squares = [0.0, 0.0, 4.0, 1.0, 0.0]
    values, gradient, wanted = [9.0, 1.0, -0.5, -2.0], torch.tensor([0.5, 0.5]), 0.0
    for at, (theta, value) in enumerate(zip(thetas, values, strict=True)):
        wanted = value - optimum + b1 * squares[at + 1] + b2 * squares[at]
        assert monitor.check(theta, value, gradient) == pytest.approx(wanted)
    # The next may be this much, and not more.
    allowed = q * wanted if mu else wanted - alpha / 2 * 0.5
    moved = torch.tensor([2.0, 2.0])
    with pytest.raises(DescentViolated) as caught:
        monitor.check(moved, optimum + allowed + 1e-3, gradient)
    assert caught.value.allowed == pytest.approx(allowed)
    monitor.check(moved, optimum + allowed - 1e-3, gradient)


def test_a_round_without_descent_is_named_with_both_numbers() -> None:
    problem = Quadratics.random(0, 3, NUMEL)
    alpha = 0.5 / problem.smoothness
    monitor = DescentMonitor(alpha, problem.smoothness, provable_xi(alpha, problem.smoothness))
    fleet = Fleet(GDSEC(c=0, beta=1.0), 3)
    theta = torch.ones(NUMEL, dtype=torch.float64)
    for step in range(9):
        gradients = problem.gradients(theta)
        value, gradient = problem.value(theta), torch.stack(gradients).sum(0)
        if step == 8:
            with pytest.raises(DescentViolated, match="round 8: V is") as caught:
                monitor.check(theta, value, gradient)
            violated: DescentViolated = pickle.loads(pickle.dumps(caught.value))
            assert violated.round == 8
            assert violated.potential > violated.allowed
            assert f"{violated.allowed:.10g}" in str(violated)
            return
        monitor.check(theta, value, lambda gradient=gradient: gradient)
        ghat = fleet.exchange(gradients)
        # A receiver that adds where it should subtract.
        theta = theta + (alpha if step == 7 else -alpha) * ghat


def test_nan_is_no_descent() -> None:
    monitor = DescentMonitor(0.1, 1.0, 0.0)
    monitor.check(torch.ones(2), 1.0, torch.ones(2))
    with pytest.raises(DescentViolated):
        monitor.check(torch.ones(2), float("nan"), torch.ones(2))


def test_constants_outside_of_the_proof_are_refused_with_the_largest_c() -> None:
    # c = xi alpha, at most sqrt(1 - alpha L) / 2: a quarter of the square root of 3, over 2, here.
    assert provable_xi(0.25, 1.0) * 0.25 == pytest.approx(3**0.5 / 4)
    with pytest.raises(ExchangeInvalid, match=r"up to c = xi \* alpha = 0\.433 with these constants, not for 100"):
        DescentMonitor(0.25, 1.0, 400.0)
    with pytest.raises(ExchangeInvalid, match="alpha < 1 / L"):
        provable_xi(2.0, 1.0)
    with pytest.raises(ExchangeInvalid, match="strong convexity"):
        provable_xi(0.5, 1.0, 2.0)
    # Of a problem that is hardly strongly convex, about the same; of another, less.
    assert provable_xi(0.25, 1.0, 1e-9) == pytest.approx(provable_xi(0.25, 1.0))
    assert provable_xi(0.25, 1.0, 0.5) < provable_xi(0.25, 1.0)


def test_the_provable_mode_takes_the_constants_of_the_options() -> None:
    problem = breast_cancer()
    alpha = 0.5 / problem.smoothness
    c = 0.99 * provable_xi(alpha, problem.smoothness) * alpha
    for compressor in (GDSEC(c=c), GDSEC(xi=c / alpha), GDSEC(c=c / 2, factors={"theta": 2.0})):
        monitor = compressor.monitor(alpha, problem.smoothness)
        assert monitor.xi == pytest.approx(c / alpha)
    monitor = GDSEC(c=c).monitor(alpha, problem.smoothness)
    run = Federation(problem, GDSEC(c=c), alpha=alpha, monitor=monitor).run(30)
    assert monitor.num_rounds == 30
    assert run.objective_error < 0.1
    # Constants of another problem, which is smoother.
    smoother = GDSEC(c=c).monitor(alpha * 5, problem.smoothness / 10)
    with pytest.raises(DescentViolated):
        Federation(problem, GDSEC(c=c), alpha=alpha * 5, monitor=smoother).run(30)


@pytest.mark.parametrize(
    "options", [{"error_correction": False}, {"values": "bfloat16"}, {"speakers": 1}, {"density": 0.1}]
)
def test_what_is_not_proved_has_no_provable_mode(options: dict[str, Any]) -> None:
    with pytest.raises(ExchangeInvalid, match="descent is proved for error correction, exact values"):
        replace(GDSEC(c=0.1), **options).monitor(0.1, 1.0)


def test_without_error_correction_there_is_nothing_to_overshoot() -> None:
    assert GDSEC(c=100, beta=1, error_correction=False, on_unstable="raise").memory_rate == 1
    with pytest.raises(ExchangeInvalid, match="with xi give alpha too"):
        GDSEC(xi=10.0, beta=None)
