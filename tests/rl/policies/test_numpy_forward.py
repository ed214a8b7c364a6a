"""The numpy forward against torch, over sizes, activations and heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ropewalk.rl.environments.spec import EnvironmentSpec
from ropewalk.rl.networks.distributions import Categorical, DiagonalGaussian
from ropewalk.rl.networks.heads import GaussianHead, PolicyHead, QHead, ValueHead
from ropewalk.rl.networks.impala_cnn import ImpalaCNN
from ropewalk.rl.networks.initialisation import seeded
from ropewalk.rl.networks.lstm import LSTM
from ropewalk.rl.networks.mlp import ACTIVATIONS, MLP
from ropewalk.rl.networks.normalisation import Normalised, observe
from ropewalk.rl.networks.torso import as_torso
from ropewalk.rl.policies.numpy_forward import numpy_forward
from tests.rl.networks.specs import IMAGE, NAMED, NUMBERED, VECTOR, random_observation

WITH_NUMPY = sorted(ACTIVATIONS.keys() - {"gelu"})


def assert_equal(module: nn.Module, spec: EnvironmentSpec, rows: int, within: float = 1e-6) -> None:
    forward = numpy_forward(module)
    assert forward is not None
    observation = random_observation(spec, rows, seed=rows)
    arrays: Any = (
        observation.numpy()
        if isinstance(observation, torch.Tensor)
        else {name: array.numpy() for name, array in observation.items()}
    )
    with torch.no_grad():
        expected = module(observation).numpy()
    found = forward(arrays)
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=within, atol=within)


@pytest.mark.parametrize("activation", WITH_NUMPY)
@pytest.mark.parametrize("hidden", [(), (1,), (64, 64), (256, 256), (7, 5, 3)])
@pytest.mark.parametrize("rows", [1, 8, 33])
def test_perceptrons_are_equal_to_torch(hidden: tuple[int, ...], activation: str, rows: int) -> None:
    with seeded(1):
        torso = MLP(hidden, activation)(VECTOR)
        module = nn.Sequential(torso, PolicyHead(torso.features, Categorical(3), gain=1.0))
    assert_equal(module, VECTOR, rows)


@pytest.mark.parametrize("spec", [VECTOR, NUMBERED, IMAGE, NAMED], ids=["vector", "number", "image", "names"])
def test_all_kinds_of_observations_are_read_as_torch_reads_them(spec: EnvironmentSpec) -> None:
    with seeded(1):
        torso = MLP((16,), layer_norm=True)(spec)
    assert_equal(torso, spec, 5, within=1e-5)  # sums of 4752 products in float32, in another order


@pytest.mark.parametrize(
    "head",
    [
        PolicyHead(16, Categorical(3), gain=1.0),
        GaussianHead(16, 3, -0.3, gain=1.0),
        ValueHead(16),
        QHead(16, 3),
        QHead(16, 3, 5, dueling=True, hidden=8),
        QHead(16, 3, dueling=True),
        nn.Linear(16, 2, bias=False),
        nn.Identity(),
    ],
    ids=lambda head: type(head).__name__,
)
def test_heads_are_equal_to_torch(head: nn.Module) -> None:
    assert_equal(nn.Sequential(MLP((16,))(VECTOR), head), VECTOR, 5)


@pytest.mark.parametrize("spec", [VECTOR, NAMED], ids=["vector", "names"])
def test_normalised_observations_are_equal_to_torch(spec: EnvironmentSpec) -> None:
    torso = Normalised(MLP((16,)), clip=1.5)(spec)
    observe(torso, random_observation(spec, 20, seed=9))
    assert_equal(torso, spec, 6)


def test_plain_modules_are_equal_to_torch() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.Tanh(), nn.Sequential(nn.LayerNorm(8), nn.ReLU()))
    assert_equal(module, VECTOR, 3)
    assert_equal(as_torso(module, VECTOR), VECTOR, 3)


def test_weights_that_are_loaded_into_the_module_are_used() -> None:
    module, other = (nn.Sequential(Normalised(MLP((8,)))(VECTOR), GaussianHead(8, 2)) for _ in range(2))
    forward, observation = numpy_forward(module), random_observation(VECTOR, 4)
    assert forward is not None and isinstance(observation, torch.Tensor)
    before = forward(observation.numpy())
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 0.25
    observe(other, random_observation(VECTOR, 30))
    module.load_state_dict(other.state_dict())
    assert not np.allclose(forward(observation.numpy()), before)
    with torch.no_grad():
        np.testing.assert_allclose(forward(observation.numpy()), other(observation).numpy(), rtol=1e-6, atol=1e-6)


def test_the_observation_is_not_written_to() -> None:
    module = nn.Sequential(MLP(())(VECTOR), nn.ReLU(), nn.Linear(4, 4))
    forward, observation = numpy_forward(module), random_observation(VECTOR, 4)
    assert forward is not None and isinstance(observation, torch.Tensor)
    before = observation.clone()
    forward(observation.numpy())
    assert torch.equal(observation, before)


class Doubled(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


def hooked() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda *given: -given[-1])
    return layer


@pytest.mark.parametrize(
    "module",
    [
        MLP((8,), "gelu")(VECTOR),
        LSTM(MLP((8,)), 4)(VECTOR),
        ImpalaCNN((4,), 8)(IMAGE),
        Normalised(LSTM(MLP((8,)), 4))(VECTOR),
        QHead(8, 2, noisy=True),
        QHead(8, 2, dueling=True, noisy=True),
        nn.Sequential(nn.Linear(4, 4), nn.Dropout()),
        Doubled(4, 4),
        nn.Sequential(hooked()),
        nn.Sequential(nn.Linear(4, 4).double()),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        nn.Flatten(0),
        nn.LayerNorm([4, 4]),
    ],
    ids=lambda module: type(module).__name__,
)
def test_what_numpy_cannot_do_has_no_forward(module: nn.Module) -> None:
    assert numpy_forward(module) is None


def test_activations_far_from_0_are_equal_and_warn_of_nothing() -> None:
    values = torch.tensor([[-1e4, -100.0, -1e-4, 0.0, 1e-4, 100.0, 1e4]])
    for name in WITH_NUMPY:
        module = ACTIVATIONS[name]()
        forward = numpy_forward(module)
        assert forward is not None
        np.testing.assert_allclose(forward(values.numpy()), module(values).numpy(), rtol=1e-6, atol=1e-6)


def test_features_of_the_gaussian_head_keep_the_distribution() -> None:
    head = GaussianHead(4, 2)
    forward = numpy_forward(head)
    assert forward is not None
    assert forward(np.zeros((3, 4), np.float32)).shape == (3, DiagonalGaussian(2).size)
