"""Noisy layers against their equations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from ropewalk.rl.networks.noisy import NoisyLinear, draw_noise


def test_noise_is_the_product_of_the_noise_of_inputs_and_outputs() -> None:
    layer = NoisyLinear(3, 2)
    draw_noise(nn.Sequential(layer), torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(num, generator=generator) for num in (3, 2)]
    inputs, outputs = (each.sign() * each.abs().sqrt() for each in drawn)
    weight = layer.weight + layer.weight_sigma * outputs[:, None] * inputs[None]
    values = torch.randn(5, 3)
    torch.testing.assert_close(layer(values), values @ weight.T + layer.bias + layer.bias_sigma * outputs)


def test_there_is_none_in_evaluation_and_before_it_is_drawn() -> None:
    layer, values = NoisyLinear(3, 2), torch.randn(5, 3)
    quiet = layer(values)
    draw_noise(layer, torch.Generator().manual_seed(1))
    assert not torch.equal(layer(values), quiet)
    assert torch.equal(layer.eval()(values), quiet)


def test_its_size_begins_at_half_over_the_root_of_the_inputs() -> None:
    layer = NoisyLinear(16, 2, sigma=0.5)
    assert layer.weight_sigma.unique().tolist() == [0.125]
    assert layer.bias_sigma.unique().tolist() == [0.125]
    assert float(layer.weight.detach().abs().max()) <= 1 / math.sqrt(16)
    assert float(layer.weight.detach().std()) == pytest.approx(1 / math.sqrt(48), rel=0.35)


def test_noise_is_no_part_of_the_weights_that_travel() -> None:
    assert set(NoisyLinear(3, 2).state_dict()) == {"weight", "bias", "weight_sigma", "bias_sigma"}


def test_its_size_is_learned() -> None:
    layer = NoisyLinear(3, 2)
    draw_noise(layer, torch.Generator().manual_seed(1))
    layer(torch.ones(1, 3)).sum().backward()
    assert layer.weight_sigma.grad is not None
    torch.testing.assert_close(layer.weight_sigma.grad, torch.outer(layer.output_noise, layer.input_noise))
