from __future__ import annotations

import pytest
import torch
from torch import nn

from ropewalk.rl.environments.spec import ArraySpec, ContinuousAction, EnvironmentSpec
from ropewalk.rl.networks.critics import Critics
from ropewalk.rl.networks.initialisation import seeded
from ropewalk.rl.networks.mlp import MLP
from ropewalk.rl.networks.stacked import StackedLinear, stacked

SPEC = EnvironmentSpec(ArraySpec((3,)), ContinuousAction((-1.0, -1.0), (1.0, 1.0)))


def test_stacked_perceptrons_return_what_each_returns() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Sequential(nn.Linear(3, 5), nn.ELU()), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))

    with seeded(0):
        modules = [make() for _ in range(3)]
        inputs = torch.randn(3, 7, 3)
    together = stacked(modules)
    assert together is not None
    expected = torch.stack([module(each) for module, each in zip(modules, inputs, strict=True)])
    torch.testing.assert_close(together(inputs), expected)


def test_gradients_of_stacked_perceptrons_are_those_of_each() -> None:
    with seeded(0):
        modules = [nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1)) for _ in range(2)]
        inputs = torch.randn(7, 3)
    together = stacked(modules)
    assert together is not None
    together(inputs.expand(2, 7, 3)).square().sum().backward()
    for index, module in enumerate(modules):
        module(inputs).square().sum().backward()
        layers = [layer for layer in together if isinstance(layer, StackedLinear)]
        for layer, linear in zip(layers, (module[0], module[2]), strict=True):
            assert layer.weight.grad is not None and layer.bias.grad is not None
            torch.testing.assert_close(layer.weight.grad[index].T, linear.weight.grad)
            torch.testing.assert_close(layer.bias.grad[index, 0], linear.bias.grad)


def test_other_layers_are_not_stacked() -> None:
    assert stacked([nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)) for _ in range(2)]) is None
    assert stacked([nn.Linear(3, 4, bias=False) for _ in range(2)]) is None


def test_a_network_of_one_size_is_told_what_critics_read() -> None:
    """It fits the observation, and so the policy."""
    with pytest.raises(RuntimeError) as caught:
        Critics(lambda spec: nn.Linear(3, 8), SPEC)
    assert (
        "read the observation joined with the action, 5 numbers: a network takes its size" in caught.value.__notes__[-1]
    )


def test_critics_have_weights_of_their_own_and_see_observation_and_action() -> None:
    for network in (MLP((8,), "relu"), MLP((8,), layer_norm=True)):
        with seeded(1):
            critics = Critics(network, SPEC)
            observation, action = torch.randn(5, 3), torch.rand(5, 2)
        values = critics(observation, action)
        assert values.shape == (2, 5)
        assert not torch.allclose(values[0], values[1])
        assert not torch.allclose(critics(observation, -action), values)
        assert not torch.allclose(critics(-observation, action), values)


def test_critics_of_dictionaries_join_the_action_to_features() -> None:
    spec = EnvironmentSpec({"a": ArraySpec((2,)), "b": ArraySpec((2, 2))}, SPEC.action)
    with seeded(1):
        critics = Critics(MLP((8,)), spec)
        observation, action = {"a": torch.randn(5, 2), "b": torch.randn(5, 2, 2)}, torch.rand(5, 2)
    values = critics(observation, action)
    assert values.shape == (2, 5)
    assert not torch.allclose(critics(observation, -action), values)


def test_critics_of_one_torch_module_that_is_made_by_the_user_are_stacked() -> None:
    def network(spec: EnvironmentSpec) -> nn.Module:
        assert isinstance(spec.observation, ArraySpec)
        return nn.Sequential(nn.Linear(spec.observation.shape[0], 8), nn.Tanh())

    critics = Critics(network, SPEC)
    assert [type(layer) for layer in critics.body] == [StackedLinear, nn.Tanh, StackedLinear]  # pyright: ignore
