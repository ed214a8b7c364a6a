"""The inference server in one process: merged calls against policies that act alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ropewalk import rl
from ropewalk.rl.environments.spec import ArraySpec, ContinuousAction, DiscreteAction, EnvironmentSpec
from ropewalk.rl.inference.caller_rows import GroupRequest, Rows, packed, set_words
from ropewalk.rl.inference.server import InferenceAnswer, InferenceServer
from ropewalk.rl.networks.action_values import ActionValueNetwork
from ropewalk.rl.networks.actor_critic import ActorCritic
from ropewalk.rl.networks.distributions import Categorical, DiagonalGaussian
from ropewalk.rl.networks.initialisation import seeded
from ropewalk.rl.networks.lstm import LSTM
from ropewalk.rl.networks.mlp import MLP
from ropewalk.rl.networks.torso import TorsoFactory
from ropewalk.rl.policies.canonical_policy import NUM_UPDATES
from ropewalk.rl.policies.epsilon_greedy import EpsilonGreedy
from ropewalk.rl.policies.exploration import EpsilonLadder
from ropewalk.rl.policies.policy import Policy
from ropewalk.rl.policies.stochastic import StochasticPolicy
from ropewalk.rl.seeds import generator
from ropewalk.rl.variables import Variables
from tests.rl.actors.policies import Remembering

SPEC = EnvironmentSpec(ArraySpec((4,)), DiscreteAction(3))
NUM_GROUPS, NUM_STEPS = 3, 12
SIZES = (3, 1, 4)


def stochastic(network: TorsoFactory, distribution: Any) -> Callable[[int], Policy]:
    def make(group: int) -> Policy:
        with seeded(5):
            return StochasticPolicy(ActorCritic(SPEC, network, distribution), distribution)

    return make


def ladder(group: int) -> Policy:
    with seeded(5):
        network = ActionValueNetwork(LSTM(MLP((8,)), 6)(SPEC), 3)
    return EpsilonGreedy(network, EpsilonLadder(group, NUM_GROUPS, base=0.7, exponent=1.0))


POLICIES: dict[str, Callable[[int], Policy]] = {
    "perceptron": stochastic(MLP((16,)), Categorical(3)),
    "gaussian": stochastic(MLP((16,)), DiagonalGaussian(2)),
    "lstm": stochastic(LSTM(MLP((16,)), 8), Categorical(3)),
    "ladder": ladder,
    "remembering": lambda group: Remembering(4, 3),
}


class Weights:
    """A source of weights that knows one version, or none that is new."""

    def __init__(self, version: int = 3) -> None:
        self.version = version

    def newest_variables(self, have: int) -> Variables | None:
        return None if have == self.version else Variables(self.version, 0.5, {})


def without_load(make: Callable[[int], Policy]) -> Callable[[int], Policy]:
    """Policies that keep the weights that they were made with."""

    def made(group: int) -> Policy:
        policy = make(group)
        policy.load = lambda variables: None  # type: ignore[method-assign]
        return policy

    return made


class Learned(Weights):
    """A source of the weights that an agent's learner begins with, after one update."""

    def __init__(self, agent: rl.Agent, spec: EnvironmentSpec) -> None:
        super().__init__()
        learner = agent.make_learner(spec, MLP((16,)), seed=1)
        self.variables = Variables(self.version, 0.5, {**learner.variables(), NUM_UPDATES: np.array(1)})

    def newest_variables(self, have: int) -> Variables | None:
        return None if have == self.version else self.variables


class Group:
    """What the environments of one group see, and what a policy of its own chooses."""

    def __init__(self, number: int, make: Callable[[int], Policy]) -> None:
        self.number, self.num_envs = number, SIZES[number]
        self.rng, self.alone_rng = generator(1, "actor", number), generator(1, "actor", number)
        self.policy = make(number)
        self.state: Mapping[str, Any] = self.policy.initial_state(self.num_envs)
        self.run, self.step = 70 + number, 0

    def seen(self, step: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        rng = generator(2, "seen", self.number, step)
        first = rng.random(self.num_envs) < 0.2
        return rng.standard_normal((self.num_envs, 4), np.float32), first | (step == 0)


def answered(
    server: InferenceServer, rows: Rows, observation: NDArray[np.float32], first: NDArray[np.bool_]
) -> InferenceAnswer:
    return InferenceAnswer.of(server.act(rows, observation, first), server.extra_names() or ())


def served(server: InferenceServer, groups: list[Group], step: int) -> list[tuple[Any, Any]]:
    """Answers of one merged call, group by group, beside what a policy of their own chooses."""
    seen = [group.seen(step) for group in groups]
    rows = packed(*[GroupRequest(group.number, group.run, group.step, group.num_envs, group.rng) for group in groups])
    answer = answered(
        server,
        rows,
        np.concatenate([each for each, _ in seen]),
        np.concatenate([each for _, each in seen]),
    )
    ends = list(itertools.accumulate(group.num_envs for group in groups))
    found: list[tuple[Any, Any]] = []
    for group, end, (observation, first) in zip(groups, ends, seen, strict=True):
        own = slice(end - group.num_envs, end)
        choice = group.policy.act(observation, first, group.state, group.alone_rng)
        group.state = choice.state
        assert bool((answer.words[own] == answer.words[own][0]).all())
        found.append((_of_rows(answer, own), choice))
        set_words(group.rng, answer.words[own][0].tolist())
        group.step += 1
    return found


def _of_rows(answer: InferenceAnswer, rows: slice) -> tuple[Any, dict[str, Any], Any]:
    extras = {name: array[rows] for name, array in answer.extras.items()}
    return answer.action[rows], extras, answer.version[rows]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", POLICIES)
def test_each_group_gets_what_a_policy_of_its_own_would_choose(name: str, exact: bool) -> None:
    make = without_load(POLICIES[name])
    server = InferenceServer(make, Weights(), exact=exact)
    groups = [Group(number, make) for number in range(NUM_GROUPS)]
    for step in range(NUM_STEPS):
        for (action, extras, version), choice in served(server, groups, step):
            assert action.dtype == choice.action.dtype
            assert version.tolist() == [3] * len(action)
            if exact or name not in ("gaussian",):
                assert np.array_equal(action, choice.action)
            else:
                np.testing.assert_allclose(action, choice.action, rtol=1e-5, atol=1e-6)
            assert extras.keys() == choice.extras.keys()
            for column, array in extras.items():
                if exact:
                    assert np.array_equal(array, choice.extras[column])
                else:
                    np.testing.assert_allclose(array, choice.extras[column], rtol=1e-5, atol=1e-5)
    assert server.served() == {"batches": NUM_STEPS, "rows": NUM_STEPS * sum(SIZES), "version": 3}


@pytest.mark.parametrize("agent", [rl.SAC(), rl.TD3()], ids=["sac", "td3"])
def test_agents_of_continuous_actions_can_be_served(agent: rl.Agent) -> None:
    spec = EnvironmentSpec(ArraySpec((4,)), ContinuousAction((-2.0, -1.0), (2.0, 3.0)))
    source = Learned(agent, spec)

    def make(group: int) -> Policy:
        return agent.make_policy(spec, MLP((16,)), group=group, groups=NUM_GROUPS)

    server = InferenceServer(make, source)
    groups = [Group(number, make) for number in range(NUM_GROUPS)]
    for group in groups:
        group.policy.load(source.variables)
    for step in range(3):
        for (action, _, _), choice in served(server, groups, step):
            np.testing.assert_allclose(action, choice.action, rtol=1e-5, atol=1e-6)
            assert len(np.unique(action)) > 1


@pytest.mark.parametrize("exact", [False, True])
def test_generators_come_back_where_a_policy_of_its_own_would_leave_them(exact: bool) -> None:
    make = without_load(POLICIES["perceptron"])
    server = InferenceServer(make, Weights(), exact=exact)
    groups = [Group(number, make) for number in range(NUM_GROUPS)]
    served(server, groups, 0)
    for group in groups:
        assert group.rng.bit_generator.state == group.alone_rng.bit_generator.state


def test_memory_is_reset_for_another_run_and_that_is_said() -> None:
    server = InferenceServer(without_load(POLICIES["remembering"]), Weights())
    rng, observation = np.random.default_rng(0), np.ones((2, 4), np.float32)
    never = np.zeros(2, np.bool_)
    begun = answered(server, packed(GroupRequest(0, 1, 0, 2, rng)), observation, np.array([True, False]))
    assert begun.forgot.tolist() == [False, True]  # the second one says that it is in the middle of an episode
    later = answered(server, packed(GroupRequest(0, 1, 1, 2, rng)), observation, never)
    assert (later.extras["steps"].tolist(), later.forgot.tolist()) == ([2, 2], [False, False])
    other = answered(server, packed(GroupRequest(0, 2, 2, 2, rng)), observation, never)
    assert (other.extras["steps"].tolist(), other.forgot.tolist()) == ([1, 1], [True, True])


def test_a_repeated_call_gets_the_same_answer() -> None:
    server = InferenceServer(without_load(POLICIES["remembering"]), Weights())
    rng, observation = np.random.default_rng(0), np.ones((2, 4), np.float32)
    server.act(packed(GroupRequest(0, 1, 0, 2, rng)), observation, np.ones(2, np.bool_))
    answers = [
        answered(server, packed(GroupRequest(0, 1, 1, 2, rng)), observation, np.zeros(2, np.bool_)) for _ in range(3)
    ]
    assert [answer.extras["steps"].tolist() for answer in answers] == [[2, 2]] * 3
    assert np.array_equal(answers[0].action, answers[2].action)


def test_policies_of_groups_are_made_only_where_groups_differ() -> None:
    for name, expected in (("ladder", [0, 1, 2]), ("lstm", [0])):
        made: list[int] = []

        def make(group: int, name: str = name, made: list[int] = made) -> Policy:
            made.append(group)
            return POLICIES[name](group)

        server = InferenceServer(without_load(make), Weights())
        groups = [Group(number, without_load(POLICIES[name])) for number in range(NUM_GROUPS)]
        for step in range(2):
            served(server, groups, step)
        assert made == expected


def test_newer_weights_are_loaded_and_equal_ones_are_not() -> None:
    source, loaded = Weights(), list[int]()

    def make(group: int) -> Policy:
        policy = Remembering(4, 3)
        policy.load = lambda variables: loaded.append(variables.version)  # type: ignore[method-assign]
        return policy

    server = InferenceServer(make, source)
    server._refresh()
    source.version = 8
    server._refresh()
    assert loaded == [3, 8]
    assert server.served()["version"] == 8


def test_a_period_of_0_is_refused() -> None:
    with pytest.raises(ValueError, match="not 0"):
        InferenceServer(POLICIES["lstm"], Weights(), refresh_s=0)
