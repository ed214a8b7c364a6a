from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from ropewalk.rl.agents.a2c import A2C
from ropewalk.rl.agents.agent import NetworkFactory
from ropewalk.rl.agents.on_policy import OnPolicyAgent
from ropewalk.rl.agents.ppo import PPO
from ropewalk.rl.environments.spec import (
    ArraySpec,
    ContinuousAction,
    DiscreteAction,
    EnvironmentSpec,
    MultiDiscreteAction,
    Observation,
)
from ropewalk.rl.networks.lstm import LSTM
from ropewalk.rl.networks.mlp import MLP
from ropewalk.rl.policies.policy import ActionChoice
from ropewalk.rl.policies.stochastic import StochasticPolicy
from ropewalk.rl.variables import Variables
from tests.rl.agents.experience import assert_close

OBSERVATION = ArraySpec((3,))
SPECS = {
    "discrete": EnvironmentSpec(OBSERVATION, DiscreteAction(4)),
    "several": EnvironmentSpec(OBSERVATION, MultiDiscreteAction((2, 3))),
    "continuous": EnvironmentSpec(OBSERVATION, ContinuousAction((-1.0, -2.0), (1.0, 2.0))),
    "dictionary": EnvironmentSpec({"a": OBSERVATION, "b": ArraySpec((), "int64", 0, 4)}, DiscreteAction(4)),
}
each_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


class Plain(nn.Module):
    """A perceptron that numpy does not know."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        super().__init__()
        self.inner = MLP((16,))(spec)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.inner(observation)


def variables_of(
    agent: OnPolicyAgent, spec: EnvironmentSpec, network: NetworkFactory | None = None, seed: int = 1
) -> Variables:
    learner = agent.make_learner(spec, network, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():  # far from the initial weights, with which all actions are nearly as likely
        for parameter in learner.model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return Variables(1, 0.0, learner.variables())


def observations(spec: EnvironmentSpec, num: int) -> Observation:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((num, 3)).astype(np.float32)
    return {"a": a, "b": rng.integers(0, 5, num)} if "observation" not in spec.observation_columns else a


@each_spec
def test_a_network_that_numpy_evaluates_chooses_as_torch_does(spec: EnvironmentSpec) -> None:
    agent = A2C()
    variables = variables_of(agent, spec, MLP((16,)))
    fast, slow = (agent.make_policy(spec, MLP((16,))) for _ in range(2))
    assert fast._forward is not None
    slow._forward = None
    first = np.zeros(50, np.bool_)
    for policy in (fast, slow):
        policy.load(variables)
    for greedy in (False, True):
        choices = [
            policy.act(observations(spec, 50), first, {}, np.random.default_rng(3), greedy=greedy)
            for policy in (fast, slow)
        ]
        assert_close(choices[0].action, choices[1].action)
        assert choices[0].action.dtype == spec.action_array.dtype
        assert choices[0].action.shape == (50, *spec.action_array.shape)
        assert list(choices[0].extras) == ([] if greedy else ["log_prob"])
    assert_close(_drawn(fast, spec).extras["log_prob"], _drawn(slow, spec).extras["log_prob"])


def _drawn(policy: StochasticPolicy, spec: EnvironmentSpec) -> ActionChoice:
    return policy.act(observations(spec, 50), np.zeros(50, np.bool_), {}, np.random.default_rng(3))


@each_spec
def test_the_learner_computes_the_log_probability_that_came_with_the_action(spec: EnvironmentSpec) -> None:
    agent = PPO(normalise_observations=True)
    learner = agent.make_learner(spec, None, seed=1)
    policy = agent.make_policy(spec, None)
    policy.load(Variables(1, 0.0, learner.variables()))
    choice = _drawn(policy, spec)
    shown = observations(spec, 50)
    tensors = (
        {n: torch.tensor(a)[None] for n, a in shown.items()} if isinstance(shown, dict) else torch.tensor(shown)[None]
    )
    with torch.no_grad():
        params, _, _ = learner.model.unroll(tensors, torch.zeros(1, 50, dtype=torch.bool), {})
        log_prob = learner.distribution.log_prob(params[0], torch.tensor(choice.action))
    assert_close(choice.extras["log_prob"], log_prob.numpy())


def test_other_networks_are_evaluated_by_torch() -> None:
    spec = SPECS["discrete"]
    policy = A2C().make_policy(spec, Plain)
    assert policy._forward is None
    policy.load(variables_of(A2C(), spec, Plain))
    assert _drawn(policy, spec).action.shape == (50,)


def test_a_greedy_choice_is_the_most_likely_action() -> None:
    spec = SPECS["discrete"]
    policy = A2C().make_policy(spec, None)
    policy.load(variables_of(A2C(), spec))
    observation = observations(spec, 1)
    assert isinstance(observation, np.ndarray)
    many = np.repeat(observation, 2000, axis=0)
    choice = policy.act(many, np.zeros(2000, np.bool_), {}, np.random.default_rng(0))
    greedy = policy.act(observation, np.zeros(1, np.bool_), {}, np.random.default_rng(0), greedy=True)
    counts = np.bincount(choice.action, minlength=4)
    assert greedy.action[0] == counts.argmax()
    probabilities = {int(a): float(np.exp(p)) for a, p in zip(choice.action, choice.extras["log_prob"], strict=True)}
    for action, probability in probabilities.items():
        assert counts[action] / 2000 == pytest.approx(probability, abs=0.05)


def test_equal_generators_choose_equal_actions_and_torch_draws_nothing() -> None:
    spec = SPECS["continuous"]
    policy = A2C().make_policy(spec, None)
    before = torch.random.get_rng_state()
    actions = [_drawn(policy, spec).action for _ in range(2)]
    assert (actions[0] == actions[1]).all()
    assert torch.equal(before, torch.random.get_rng_state())


def test_new_weights_are_acted_with_after_load_and_the_arrays_stay_as_they_are() -> None:
    spec = SPECS["discrete"]
    policy = A2C().make_policy(spec, None)
    one, two = variables_of(A2C(), spec, seed=1), variables_of(A2C(), spec, seed=2)
    policy.load(one)
    before = _drawn(policy, spec)
    kept = {name: array.copy() for name, array in one.arrays.items()}
    policy.load(two)
    assert (_drawn(policy, spec).extras["log_prob"] != before.extras["log_prob"]).any()
    assert all((one.arrays[name] == array).all() for name, array in kept.items())
    policy.load(one)
    assert (_drawn(policy, spec).action == before.action).all()


@pytest.mark.parametrize("separate", [False, True])
def test_memory_goes_on_from_step_to_step_and_is_reset_where_an_episode_begins(separate: bool) -> None:
    spec, network = SPECS["discrete"], LSTM(MLP((8,)), 5)
    agent = A2C(separate_networks=separate)
    policy = agent.make_policy(spec, network)
    policy.load(variables_of(agent, spec, network))
    state = policy.initial_state(2)
    assert sorted(state) == sorted(["hidden", "cell", *(["value.hidden", "value.cell"] if separate else [])])
    observation = np.ones((2, 3), np.float32)
    rng = np.random.default_rng(0)
    seen = [policy.act(observation, np.zeros(2, np.bool_), state, rng)]
    for _ in range(3):
        seen.append(policy.act(observation, np.array([False, True]), seen[-1].state, rng))
    for name in state:
        after = [choice.state[name] for choice in seen]
        assert after[0].shape == (2, 5)
        assert all((later[1] == after[0][1]).all() for later in after)
        assert (after[3][0] != after[0][0]).any()


def test_the_state_that_a_policy_was_given_is_not_changed() -> None:
    spec, network = SPECS["discrete"], LSTM(MLP((8,)), 5)
    policy = A2C().make_policy(spec, network)
    state = policy.initial_state(2)
    policy.act(np.ones((2, 3), np.float32), np.ones(2, np.bool_), state, np.random.default_rng(0))
    assert all((array == 0).all() for array in state.values())
