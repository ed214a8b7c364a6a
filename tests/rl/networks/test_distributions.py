"""Distributions against torch's, against integrals, and against the frequencies of what is drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import AffineTransform, TanhTransform

from ropewalk.rl.environments.spec import ContinuousAction, DiscreteAction, MultiDiscreteAction
from ropewalk.rl.networks.distributions import (
    ActionDistribution,
    Categorical,
    DiagonalGaussian,
    MultiCategorical,
    SquashedGaussian,
    for_spec,
)

SQUASHED = SquashedGaussian((-1.0, 0.0), (3.0, 0.5))
ALL: list[ActionDistribution] = [Categorical(4), MultiCategorical((2, 3, 2)), DiagonalGaussian(2), SQUASHED]


def params_of(distribution: ActionDistribution, rows: int = 64, seed: int = 0) -> np.ndarray:
    return 0.5 * np.random.default_rng(seed).standard_normal((rows, distribution.size), np.float32)


@pytest.mark.parametrize("distribution", ALL, ids=lambda each: type(each).__name__)
def test_what_numpy_draws_has_the_probability_that_torch_says(distribution: ActionDistribution) -> None:
    params = params_of(distribution)
    action, log_prob = distribution.sample(params, np.random.default_rng(1))
    assert log_prob.dtype == np.float32
    expected = distribution.log_prob(torch.from_numpy(params).double(), torch.from_numpy(np.asarray(action)).double())
    np.testing.assert_allclose(log_prob, expected.numpy(), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("distribution", ALL, ids=lambda each: type(each).__name__)
def test_draws_follow_from_the_generator_and_each_row_from_its_own_numbers(distribution: ActionDistribution) -> None:
    params = params_of(distribution)
    action, log_prob = distribution.sample(params, np.random.default_rng(1))
    again, _ = distribution.sample(params, np.random.default_rng(1))
    assert np.array_equal(action, again)
    changed = params.copy()
    changed[7:] = 0.5
    other, other_log_prob = distribution.sample(changed, np.random.default_rng(1))
    assert np.array_equal(action[:7], other[:7])
    assert np.array_equal(log_prob[:7], other_log_prob[:7])


def test_choices_are_torchs() -> None:
    params = torch.from_numpy(params_of(Categorical(4))).double()
    action = torch.arange(64) % 4
    torch.testing.assert_close(
        Categorical(4).log_prob(params, action), TorchCategorical(logits=params).log_prob(action)
    )
    torch.testing.assert_close(Categorical(4).entropy(params), TorchCategorical(logits=params).entropy())


def test_several_choices_are_the_sum_of_each() -> None:
    several = MultiCategorical((2, 3))
    params = torch.from_numpy(params_of(several)).double()
    action = torch.stack([torch.arange(64) % 2, torch.arange(64) % 3], -1)
    parts = [TorchCategorical(logits=params[:, :2]), TorchCategorical(logits=params[:, 2:])]
    expected = parts[0].log_prob(action[:, 0]) + parts[1].log_prob(action[:, 1])
    torch.testing.assert_close(several.log_prob(params, action), expected)
    torch.testing.assert_close(several.entropy(params), parts[0].entropy() + parts[1].entropy())


def test_gaussians_are_torchs() -> None:
    gaussian = DiagonalGaussian(2)
    params = torch.from_numpy(params_of(gaussian)).double()
    truth = Independent(Normal(params[:, :2], params[:, 2:].exp()), 1)
    action = torch.randn(64, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(gaussian.log_prob(params, action), truth.log_prob(action))
    torch.testing.assert_close(gaussian.entropy(params), truth.entropy())


def test_squashed_gaussians_are_torchs_transformed_ones() -> None:
    params = torch.from_numpy(params_of(SQUASHED)).double()
    centre, half = torch.tensor([1.0, 0.25]).double(), torch.tensor([2.0, 0.25]).double()
    truth = TransformedDistribution(
        Independent(Normal(params[:, :2], params[:, 2:].exp()), 1), [TanhTransform(), AffineTransform(centre, half, 1)]
    )
    action, log_prob = SQUASHED.rsample(params, torch.Generator().manual_seed(1))
    torch.testing.assert_close(log_prob, truth.log_prob(action), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(SQUASHED.log_prob(params, action), truth.log_prob(action), rtol=1e-4, atol=1e-4)


def test_the_density_of_a_squashed_gaussian_integrates_to_1() -> None:
    one = SquashedGaussian((-2.0,), (6.0,))
    action = torch.linspace(-2, 6, 400_001, dtype=torch.float64)[1:-1].unsqueeze(-1)
    params = torch.tensor([0.3, -0.5], dtype=torch.float64).expand(len(action), 2)
    density = one.log_prob(params, action).exp()
    assert float(density.sum()) * 8 / 400_000 == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("raw", [-60.0, 60.0, 1e4])
def test_log_probabilities_are_finite_however_far_the_mean_is(raw: float) -> None:
    one = SquashedGaussian((-1.0,), (1.0,))
    params = torch.tensor([[raw, 0.0]], requires_grad=True)
    action, log_prob = one.rsample(params, torch.Generator().manual_seed(0))
    (action.sum() + log_prob.sum()).backward()
    assert params.grad is not None
    assert bool(params.grad.isfinite().all())
    assert bool(log_prob.isfinite().all())
    drawn, numpy_log_prob = one.sample(params.detach().numpy(), np.random.default_rng(0))
    assert np.isfinite(numpy_log_prob).all()
    assert abs(float(drawn[0, 0])) <= 1
    assert bool(one.log_prob(params, action).isfinite().all())


@pytest.mark.parametrize("distribution", [DiagonalGaussian(1, -5.0, 2.0), SquashedGaussian((-1.0,), (1.0,), -5.0, 2.0)])
@pytest.mark.parametrize(("given", "counts"), [(-30.0, -5.0), (9.0, 2.0)])
def test_logarithms_of_deviations_are_clamped(
    distribution: DiagonalGaussian | SquashedGaussian, given: float, counts: float
) -> None:
    outside, inside = (np.array([[0.3, log_std]], np.float32) for log_std in (given, counts))
    for clamped, plain in zip(
        distribution.sample(outside, np.random.default_rng(0)),
        distribution.sample(inside, np.random.default_rng(0)),
        strict=True,
    ):
        assert np.array_equal(clamped, plain)
    found = distribution.rsample(torch.from_numpy(outside), torch.Generator().manual_seed(0))
    expected = distribution.rsample(torch.from_numpy(inside), torch.Generator().manual_seed(0))
    assert torch.equal(found[1], expected[1])


def test_frequencies_of_choices_are_their_probabilities() -> None:
    params = np.log(np.array([[0.1, 0.6, 0.0001, 0.2999]], np.float32)).repeat(200_000, 0)
    action, _ = Categorical(4).sample(params, np.random.default_rng(2))
    frequency = np.bincount(np.asarray(action, np.int64), minlength=4) / 200_000
    assert frequency == pytest.approx([0.1, 0.6, 0.0001, 0.2999], abs=0.005)


class OneNumber(np.random.Generator):
    """Draws one number again and again."""

    def __init__(self, number: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.number = number

    def random(self, size: tuple[int, ...]) -> np.ndarray:  # type: ignore[override]
        return np.full(size, self.number)


@pytest.mark.parametrize("number", [0.0, 0.5, np.nextafter(1.0, 0.0)])
def test_forbidden_choices_are_never_drawn_whatever_the_number(number: float) -> None:
    rng = np.random.default_rng(3)
    params = rng.standard_normal((2000, 6), np.float32)
    forbidden = rng.random((2000, 6)) < 0.5
    forbidden[np.arange(2000), rng.integers(6, size=2000)] = False
    params[forbidden] = -np.inf
    action, log_prob = Categorical(6).sample(params, OneNumber(number))
    assert not forbidden[np.arange(2000), np.asarray(action, np.int64)].any()
    assert np.isfinite(log_prob).all()


def test_forbidden_choices_have_no_part_in_entropy_and_gradient() -> None:
    params = torch.tensor([[0.0, -math.inf, 0.0]], requires_grad=True)
    entropy = Categorical(3).entropy(params)
    assert entropy.item() == pytest.approx(math.log(2))
    entropy.sum().backward()
    assert params.grad is not None
    assert params.grad.tolist() == [[0, 0, 0]]


def test_modes_are_the_likeliest_actions() -> None:
    params = np.array([[0.0, 3.0, 1.0, 2.0]], np.float32)
    assert Categorical(4).mode(params).tolist() == [1]
    assert MultiCategorical((2, 2)).mode(params).tolist() == [[1, 1]]
    assert DiagonalGaussian(2).mode(params).tolist() == [[0, 3]]
    np.testing.assert_allclose(
        np.asarray(SQUASHED.mode(params), np.float32), [[1.0, 0.25 + 0.25 * math.tanh(3)]], rtol=1e-6
    )


def test_the_kind_follows_from_the_spec() -> None:
    assert for_spec(DiscreteAction(3)) == Categorical(3)
    assert for_spec(MultiDiscreteAction((2, 3))) == MultiCategorical((2, 3))
    assert for_spec(ContinuousAction((-1.0,), (2.0,))) == DiagonalGaussian(1)


def test_squashing_to_infinite_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match=r"finite bounds, each low below its high, but they are \[\(-1.0, inf\)\]"):
        SquashedGaussian((-1.0,), (math.inf,))
    with pytest.raises(NotImplementedError, match="no closed form"):
        SQUASHED.entropy(torch.zeros(1, 4))


@pytest.mark.parametrize("distribution", [DiagonalGaussian(2), SQUASHED])
def test_drawn_actions_have_the_gradient_of_their_parameters(distribution: DiagonalGaussian | SquashedGaussian) -> None:
    params = torch.from_numpy(params_of(distribution, 3)).double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda given: distribution.rsample(given, torch.Generator().manual_seed(4)), (params,), atol=1e-5
    )
