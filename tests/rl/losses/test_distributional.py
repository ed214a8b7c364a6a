"""C51's projection against the loop of the paper's algorithm 1, and quantile regression against its definition."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.rl.losses.distributional import categorical_losses, categorical_projection, quantile_losses

SUPPORT = torch.linspace(-10, 10, 51, dtype=torch.float64)


def algorithm_1(probs: list[float], reward: float, discount: float) -> list[float]:
    out, distance = [0.0] * 51, 20 / 50
    for probability, z in zip(probs, SUPPORT.tolist(), strict=True):
        at = (min(max(reward + discount * z, -10.0), 10.0) + 10) / distance
        lower, upper = math.floor(at), math.ceil(at)
        if lower == upper:
            out[lower] += probability
        else:
            out[lower] += probability * (upper - at)
            out[upper] += probability * (at - lower)
    return out


def random_probs(seed: int, num: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(num, 51, generator=generator, dtype=torch.float64)).softmax(-1)


def test_the_projection_is_the_papers_loop() -> None:
    probs = random_probs(1)
    reward = torch.tensor([0.0, 1.0, -0.33, 9.7, 50.0, -50.0], dtype=torch.float64)
    discount = torch.tensor([1.0, 0.99, 0.0, 0.5, 0.9, 0.9], dtype=torch.float64)
    found = categorical_projection(probs, reward, discount, SUPPORT)
    for row in range(6):
        expected = algorithm_1(probs[row].tolist(), float(reward[row]), float(discount[row]))
        assert found[row].tolist() == pytest.approx(expected, abs=1e-12)


@given(st.floats(-5, 5), st.floats(0, 0.5), st.integers(0, 1000))
def test_it_keeps_the_mass_and_inside_the_support_the_mean(reward: float, discount: float, seed: int) -> None:
    probs = random_probs(seed, 1)
    found = categorical_projection(
        probs, torch.tensor([reward], dtype=torch.float64), torch.tensor([discount], dtype=torch.float64), SUPPORT
    )
    assert found.sum().item() == pytest.approx(1)
    mean = (probs @ SUPPORT).item()
    assert (found @ SUPPORT).item() == pytest.approx(reward + discount * mean, abs=1e-9)
    assert bool((found >= 0).all())


def test_after_a_termination_all_mass_is_at_the_reward() -> None:
    zero = torch.zeros(1, dtype=torch.float64)
    found = categorical_projection(random_probs(2, 1), zero + 0.4, zero, SUPPORT)
    assert found[0, 26].item() == pytest.approx(1)


def test_cross_entropy_is_smallest_at_the_target_and_has_no_gradient_to_it() -> None:
    target = random_probs(3, 2).requires_grad_()
    logits = target.detach().log().requires_grad_()
    losses = categorical_losses(logits, target)
    entropy = [-sum(p * math.log(p) for p in row) for row in target.tolist()]
    assert losses.tolist() == pytest.approx(entropy)
    losses.sum().backward()
    assert target.grad is None
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, torch.zeros_like(logits), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kappa", [0.0, 0.5, 1.0])
def test_quantile_losses_are_those_of_the_definition(kappa: float) -> None:
    generator = torch.Generator().manual_seed(4)
    quantiles = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    targets = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    found = quantile_losses(quantiles, targets, kappa)
    for row in range(3):
        total = 0.0
        for i in range(5):
            level = (2 * i + 1) / 10
            for target in targets[row].tolist():
                u = target - float(quantiles[row, i])
                if kappa == 0:
                    size = abs(u)
                else:
                    size = (0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)) / kappa
                total += abs(level - (u < 0)) * size / 4
        assert float(found[row]) == pytest.approx(total)


def test_quantile_regression_finds_the_quantiles() -> None:
    targets = torch.arange(1, 101, dtype=torch.float64).unsqueeze(0)
    quantiles = torch.full((1, 4), 50.0, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([quantiles], 20.0)
    for _ in range(400):
        optimizer.zero_grad()
        quantile_losses(quantiles, targets, 0.0).sum().backward()
        optimizer.step()
    assert quantiles[0].tolist() == pytest.approx([12.5, 37.5, 62.5, 87.5], abs=1.5)
