"""The suite that every torso passes, and plain modules as torsos."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ropewalk.rl.environments.spec import EnvironmentSpec
from ropewalk.rl.networks.concatenate import Concatenate
from ropewalk.rl.networks.impala_cnn import ImpalaCNN
from ropewalk.rl.networks.initialisation import seeded
from ropewalk.rl.networks.lstm import LSTM
from ropewalk.rl.networks.mlp import MLP
from ropewalk.rl.networks.nature_cnn import NatureCNN
from ropewalk.rl.networks.normalisation import Normalised
from ropewalk.rl.networks.torso import FeedForwardTorso, Torso, TorsoFactory, as_torso, torso_of
from tests.rl.networks.specs import IMAGE, NAMED, NUMBERED, VECTOR, random_observation

TORSOS: dict[str, tuple[TorsoFactory, EnvironmentSpec]] = {
    "mlp": (MLP((8,)), VECTOR),
    "mlp of a number": (MLP((8, 4), "relu", layer_norm=True), NUMBERED),
    "mlp of names": (MLP((8,)), NAMED),
    "nature": (NatureCNN(16), IMAGE),
    "impala": (ImpalaCNN((4, 4), 16), IMAGE),
    "lstm": (LSTM(MLP((8,)), 6), VECTOR),
    "lstm of lstm": (LSTM(LSTM(MLP((8,)), 5), 6), VECTOR),
    "concatenate": (
        Concatenate({"image": ImpalaCNN((4,), 7), "speed": LSTM(Normalised(MLP((8,))), 6), "cell": MLP((2,))}),
        NAMED,
    ),
    "normalised": (Normalised(MLP((8,))), NAMED),
    "plain": (lambda _: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5)), VECTOR),
}


@pytest.fixture(params=TORSOS)
def case(request: pytest.FixtureRequest) -> tuple[TorsoFactory, EnvironmentSpec]:
    return TORSOS[request.param]


def made(case: tuple[TorsoFactory, EnvironmentSpec], seed: int = 3) -> Torso:
    factory, spec = case
    with seeded(seed):
        return as_torso(factory(spec), spec).eval()


def first_of(num_steps: int, num_envs: int) -> Tensor:
    first = torch.rand(num_steps, num_envs, generator=torch.Generator().manual_seed(1)) < 0.3
    first[0, 0] = True
    first[1] = False
    return first


def test_an_unroll_is_the_same_as_acting_step_by_step(case: tuple[TorsoFactory, EnvironmentSpec]) -> None:
    torso, first = made(case), first_of(7, 3)
    observation = random_observation(case[1], 7, 3)
    state = {name: torch.randn_like(array) for name, array in torso.initial_state(3).items()}
    features, after = torso.unroll(observation, first, state)
    assert features.shape == (7, 3, torso.features)
    assert features.dtype == torch.float32
    for step in range(7):
        now = (
            observation[step : step + 1]
            if isinstance(observation, Tensor)
            else {name: array[step : step + 1] for name, array in observation.items()}
        )
        output, state = torso.unroll(now, first[step : step + 1], state)
        torch.testing.assert_close(output[0], features[step], rtol=1e-5, atol=1e-6)
    assert state.keys() == after.keys() == torso.initial_state(3).keys()
    for name, array in after.items():
        torch.testing.assert_close(array, state[name], rtol=1e-5, atol=1e-6)


def test_the_state_is_reset_where_an_episode_begins(case: tuple[TorsoFactory, EnvironmentSpec]) -> None:
    torso = made(case)
    observation = random_observation(case[1], 1, 3)
    first = torch.tensor([[True, False, True]])
    garbage = {name: torch.full_like(array, torch.nan) for name, array in torso.initial_state(3).items()}
    features, state = torso.unroll(observation, first, garbage)
    fresh, _ = torso.unroll(observation, first, torso.initial_state(3))
    assert torch.equal(features[0, [0, 2]], fresh[0, [0, 2]])
    assert all(bool(array[[0, 2]].isfinite().all()) for array in state.values())
    assert all(bool(array.isnan().all()) for array in garbage.values())  # what was given is not written to


def test_weights_follow_from_the_seed(case: tuple[TorsoFactory, EnvironmentSpec]) -> None:
    before = torch.get_rng_state()
    one, same, other = (made(case, seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_torches_generator_is_as_before_when_building_fails() -> None:
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="mat1 and mat2"), seeded(1):
        nn.Linear(3, 2)(torch.rand(4))
    assert torch.equal(torch.get_rng_state(), before)


def test_counting_the_features_of_a_module_changes_nothing() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    before = torch.get_rng_state()
    torso = as_torso(module, VECTOR)
    assert torso.features == 8
    assert module.training
    assert module.state_dict()["1.num_batches_tracked"] == 0
    assert torch.equal(torch.get_rng_state(), before)
    assert as_torso(torso, VECTOR) is torso


@pytest.mark.parametrize(
    ("module", "what"),
    [(nn.Flatten(0), r"shape \(8,\)"), (nn.LSTM(4, 2), "a tuple"), (nn.Unflatten(1, (2, 2)), "2, 2")],
)
def test_modules_that_return_no_features_are_refused(module: nn.Module, what: str) -> None:
    with pytest.raises(ValueError, match=what + ".*features of shape"):
        as_torso(module, VECTOR)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a network is a torch.nn.Module, not function"):
        as_torso(lambda observation: observation, VECTOR)  # pyright: ignore[reportArgumentType]


def test_a_network_that_takes_the_spec_for_a_space_is_told_what_it_gets() -> None:
    """As a `features_extractor_class` of Stable-Baselines3 does, which gets the space of observations."""

    class Extractor(nn.Linear):
        def __init__(self, observation_space: Any, features_dim: int = 8) -> None:
            super().__init__(observation_space.shape[0], features_dim)

    with pytest.raises(AttributeError, match="EnvironmentSpec") as caught:
        torso_of(LSTM(Extractor, 4), VECTOR)
    assert "spec.observation.shape and .dtype are those of an observation" in caught.value.__notes__[0]

    def misspelt(spec: EnvironmentSpec) -> nn.Module:
        return nn.Liner(4, 8)  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="Liner") as caught:
        torso_of(misspelt, VECTOR)
    assert not hasattr(caught.value, "__notes__")


def test_a_torso_without_memory_has_no_state() -> None:
    torso = MLP()(VECTOR)
    assert isinstance(torso, FeedForwardTorso)
    assert torso.initial_state(3) == {}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (VECTOR, r"a batch of 2: shape \(2, 4\), float32$"),
        (NAMED, r"a batch of 2: 'speed' of shape \(2, 3\), float32; 'cell' of shape \(2,\), int64; 'image' of"),
    ],
)
def test_a_network_that_fails_on_its_observations_is_told_with_their_shapes(spec: EnvironmentSpec, words: str) -> None:
    # "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x8)" said neither what was computed nor why.
    class Fails(nn.Module):
        def forward(self, observation: object) -> Tensor:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1") as failure:
        as_torso(Fails(), spec)
    assert re.search(words, failure.value.__notes__[0])
