from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from ropewalk.rl.environments.spec import ArraySpec, DiscreteAction, EnvironmentSpec
from ropewalk.rl.networks.action_values import ActionValueNetwork
from ropewalk.rl.networks.initialisation import seeded
from ropewalk.rl.networks.lstm import LSTM
from ropewalk.rl.networks.mlp import MLP
from ropewalk.rl.networks.module_arrays import ModuleArrays
from ropewalk.rl.networks.torso import TorsoFactory, as_torso
from ropewalk.rl.networks.value_distributions import CategoricalReturn, QuantileReturn, ReturnKind
from ropewalk.rl.policies.epsilon_greedy import EpsilonGreedy, numpy_values
from ropewalk.rl.policies.exploration import AnnealedEpsilon, EpsilonLadder, Exploration
from ropewalk.rl.schedules import LinearSchedule
from ropewalk.rl.variables import Variables

SPEC = EnvironmentSpec(ArraySpec((4,)), DiscreteAction(3))
NEVER = AnnealedEpsilon(LinearSchedule(0.0, 0.0))
NO_STATE: dict[str, np.ndarray] = {}


PERCEPTRON = MLP((16,), "relu")


def network(torso: TorsoFactory = PERCEPTRON, seed: int = 1, **settings: object) -> ActionValueNetwork:
    with seeded(seed):
        return ActionValueNetwork(as_torso(torso(SPEC), SPEC), 3, **settings)  # pyright: ignore[reportArgumentType]


def observations(num: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((num, 4), np.float32)


def act(policy: EpsilonGreedy, num: int, *, seed: int = 0, greedy: bool = False) -> np.ndarray:
    return policy.act(
        observations(num), np.zeros(num, bool), NO_STATE, np.random.default_rng(seed), greedy=greedy
    ).action


def best(values: ActionValueNetwork, num: int) -> np.ndarray:
    return values.returns.mean(values(torch.from_numpy(observations(num)))).argmax(-1).numpy()


def test_without_exploration_the_best_action_is_taken() -> None:
    actions = act(EpsilonGreedy(network(), NEVER), 200)
    assert actions.dtype == np.int64
    assert actions.tolist() == best(network(), 200).tolist()
    assert len(set(actions.tolist())) > 1


@pytest.mark.parametrize("returns", [None, CategoricalReturn(-3, 5, 11), QuantileReturn(7)])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("hidden", [0, 8])
def test_numpy_and_torch_give_equal_values(returns: ReturnKind | None, dueling: bool, hidden: int) -> None:
    made = network(returns=returns, dueling=dueling, hidden=hidden)
    by_numpy = numpy_values(made)
    assert by_numpy is not None
    by_torch = made.returns.mean(made(torch.from_numpy(observations(50)))).detach().numpy()
    np.testing.assert_allclose(by_numpy(observations(50)), by_torch, atol=2e-6)


def test_a_share_epsilon_of_the_actions_is_random() -> None:
    policy = EpsilonGreedy(network(), AnnealedEpsilon(LinearSchedule(1.0, 0.3, until=0.5)))
    greedy = best(network(), 30_000)

    def share_of_others() -> float:
        return float((act(policy, 30_000) != greedy).mean())

    assert share_of_others() == pytest.approx(2 / 3, abs=0.02)  # a third of the random ones are the best by chance
    policy.load(Variables(1, 0.9, ModuleArrays(network()).copied()))
    assert share_of_others() == pytest.approx(0.3 * 2 / 3, abs=0.02)


def test_each_environment_has_its_own_epsilon() -> None:
    policy = EpsilonGreedy(network(), EpsilonLadder())
    greedy, others = best(network(), 4), np.zeros(4)
    for seed in range(3_000):
        others += act(policy, 4, seed=seed) != greedy
    np.testing.assert_allclose(others / 3_000, EpsilonLadder().epsilons(0, 4) * 2 / 3, atol=0.03)


def test_an_evaluator_has_its_own_epsilon() -> None:
    always = AnnealedEpsilon(LinearSchedule(1.0, 1.0))
    assert act(EpsilonGreedy(network(), always), 500, greedy=True).tolist() == best(network(), 500).tolist()
    explores = EpsilonGreedy(network(), NEVER, evaluation_epsilon=0.5)
    others = (act(explores, 30_000, greedy=True) != best(network(), 30_000)).mean()
    assert others == pytest.approx(0.5 * 2 / 3, abs=0.02)


@pytest.mark.parametrize("exploration", [NEVER, EpsilonLadder()])
@pytest.mark.parametrize("noisy", [False, True])
def test_actions_follow_from_the_generator_alone(exploration: Exploration, noisy: bool) -> None:
    policies = [EpsilonGreedy(network(noisy=noisy), exploration) for _ in range(2)]
    act(policies[0], 8, seed=7)  # what one policy did before does not matter
    assert act(policies[0], 100).tolist() == act(policies[1], 100).tolist()


def test_the_generator_advances_the_same_whatever_the_weights_are() -> None:
    rngs = [np.random.default_rng(3) for _ in range(2)]
    for rng, seed in zip(rngs, (1, 2), strict=True):
        policy = EpsilonGreedy(network(seed=seed), EpsilonLadder())
        policy.act(observations(5), np.zeros(5, bool), {}, rng)
    assert rngs[0].random() == rngs[1].random()


def test_loaded_weights_are_acted_with() -> None:
    policy = EpsilonGreedy(network(seed=1), NEVER)
    other = network(seed=2)
    assert best(other, 100).tolist() != act(policy, 100).tolist()
    policy.load(Variables(1, 0.0, ModuleArrays(other).copied()))
    assert act(policy, 100).tolist() == best(other, 100).tolist()


def test_noise_changes_actions_of_actors_and_not_of_evaluators() -> None:
    policy = EpsilonGreedy(network(noisy=True), NEVER)
    assert numpy_values(network(noisy=True)) is None
    explored = {tuple(act(policy, 50, seed=seed)) for seed in range(5)}
    evaluated = {tuple(act(policy, 50, seed=seed, greedy=True)) for seed in range(5)}
    assert len(explored) > 1
    assert evaluated == {tuple(best(network(noisy=True).eval(), 50))}


def test_a_recurrent_policy_acts_as_the_network_unrolls() -> None:
    made = network(LSTM(MLP((8,)), 6))
    policy = EpsilonGreedy(network(LSTM(MLP((8,)), 6)), NEVER)
    rng = np.random.default_rng(5)
    steps, first = rng.standard_normal((10, 4, 4), np.float32), rng.random((10, 4)) < 0.2
    state = policy.initial_state(4)
    assert {name: array.shape for name, array in state.items()} == {"hidden": (4, 6), "cell": (4, 6)}
    actions = []
    for observation, begins in zip(steps, first, strict=True):
        choice = policy.act(observation, begins, state, rng)
        state = choice.state
        actions.append(choice.action)
    with torch.no_grad():
        values, after = made.unroll(torch.from_numpy(steps), torch.from_numpy(first), made.initial_state(4))
    assert np.array(actions).tolist() == values.argmax(-1).tolist()
    for name, array in after.items():
        np.testing.assert_allclose(np.asarray(state[name], np.float32), array.numpy(), atol=1e-6)


def test_a_policy_does_not_change_its_arguments() -> None:
    policy = EpsilonGreedy(network(LSTM(MLP((8,)), 6)), NEVER)
    state = {name: np.ones_like(array) for name, array in policy.initial_state(2).items()}
    shown = observations(2)
    for array in (*state.values(), shown):
        array.flags.writeable = False
    choice = policy.act(shown, np.ones(2, bool), state, np.random.default_rng(0))
    assert all((array == 1).all() for array in state.values())
    assert all((array != 1).any() for array in choice.state.values())


def test_observations_may_be_dictionaries_and_networks_plain_modules() -> None:
    class Sum(nn.Module):
        def forward(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
            return observation["a"] + observation["b"]

    spec = EnvironmentSpec({"a": ArraySpec((4,)), "b": ArraySpec((4,))}, DiscreteAction(3))
    with seeded(1):
        made = ActionValueNetwork(as_torso(Sum(), spec), 3)
    policy = EpsilonGreedy(made, NEVER)
    shown = {"a": observations(20), "b": observations(20)}
    actions = policy.act(shown, np.zeros(20, bool), {}, np.random.default_rng(0)).action
    assert actions.tolist() == made.head(torch.from_numpy(2 * observations(20))).argmax(-1).tolist()
