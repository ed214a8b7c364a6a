"""Gains of orthogonal layers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from ropewalk.rl.networks.distributions import Categorical, DiagonalGaussian
from ropewalk.rl.networks.heads import GaussianHead, PolicyHead, ValueHead, policy_head
from ropewalk.rl.networks.initialisation import draw_zero_biases, orthogonal
from ropewalk.rl.networks.lstm import LSTM
from ropewalk.rl.networks.mlp import MLP
from tests.rl.networks.specs import VECTOR


def gain_of(weight: torch.Tensor) -> float:
    """The factor of a matrix that is orthogonal but for it."""
    rows = weight.detach().flatten(1)
    rows = rows if rows.shape[0] <= rows.shape[1] else rows.T
    scale = (rows @ rows.T)[0, 0].sqrt()
    torch.testing.assert_close(rows @ rows.T, scale**2 * torch.eye(len(rows)), rtol=1e-4, atol=1e-5)
    return float(scale)


def test_layers_have_the_gains_of_ppo_and_no_bias() -> None:
    hidden = MLP((16,))(VECTOR).body[0]
    policy = PolicyHead(16, Categorical(3)).linear
    gaussian = policy_head(16, DiagonalGaussian(3))
    assert isinstance(gaussian, GaussianHead)
    value = ValueHead(16).linear
    for layer, gain in ((hidden, math.sqrt(2)), (policy, 0.01), (gaussian.linear, 0.01), (value, 1.0)):
        assert isinstance(layer, nn.Linear)
        assert gain_of(layer.weight) == pytest.approx(gain, rel=1e-4)
        assert not layer.bias.any()
    assert gaussian.log_std.tolist() == [0, 0, 0]
    assert gain_of(orthogonal(nn.Conv2d(3, 8, 3), 0.5).weight) == pytest.approx(0.5, rel=1e-4)


def test_memory_is_orthogonal_with_gain_1_and_no_bias() -> None:
    parameters = dict(LSTM(MLP((8,)), 6)(VECTOR).memory.named_parameters())
    assert gain_of(parameters["weight_ih_l0"]) == pytest.approx(1, rel=1e-4)
    assert gain_of(parameters["weight_hh_l0"]) == pytest.approx(1, rel=1e-4)
    assert not parameters["bias_ih_l0"].any()
    assert not parameters["bias_hh_l0"].any()


def test_normalised_layers_have_biases_without_which_the_size_of_an_observation_is_lost() -> None:
    layers = [layer for layer in MLP((16, 8), layer_norm=True)(VECTOR).body if isinstance(layer, nn.Linear)]
    assert len(layers) == 2 and all(layer.bias.abs().min() > 0 for layer in layers)


def test_biases_that_are_0_are_drawn_and_others_stay() -> None:
    own = nn.Linear(4, 3)
    before = own.bias.detach().clone()
    linear, norm, convolution = orthogonal(nn.Linear(4, 64)), nn.LayerNorm(64), orthogonal(nn.Conv2d(4, 64, 3))
    draw_zero_biases(nn.Sequential(own, linear, norm, convolution))
    assert torch.equal(own.bias, before) and not norm.bias.any()
    for layer, inputs in ((linear, 4), (convolution, 36)):
        assert layer.bias is not None
        largest = layer.bias.abs().max() * math.sqrt(inputs)
        assert 0.9 < largest <= 1 and layer.bias.unique().numel() == 64
        assert gain_of(layer.weight) == pytest.approx(math.sqrt(2), rel=1e-4)
