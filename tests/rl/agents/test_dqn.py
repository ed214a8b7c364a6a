from __future__ import annotations

import dataclasses
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from ropewalk import rl
from ropewalk.errors import NotFinite
from ropewalk.rl.agents.dqn import DQN
from ropewalk.rl.agents.rainbow import Rainbow
from ropewalk.rl.environments.spec import ArraySpec, ContinuousAction, DiscreteAction, EnvironmentSpec
from ropewalk.rl.environments.vector import environment_spec
from ropewalk.rl.learners.optimizers import TorchAdam
from ropewalk.rl.learners.targets import TargetCopy
from ropewalk.rl.networks.lstm import LSTM
from ropewalk.rl.networks.mlp import MLP
from ropewalk.rl.replay.selectors import Prioritized, Uniform
from ropewalk.rl.schedules import LinearSchedule
from ropewalk.rl.variables import Variables
from tests.rl.agents.batches import changed, transitions
from tests.rl.agents.dqn_reference import PlainDQN, PlainNetwork

SPEC = EnvironmentSpec(ArraySpec((4,)), DiscreteAction(3))
NETWORK = MLP((10,), "relu")
ADAM = TorchAdam(3e-2, eps=1e-3)  # a larger eps, so that rounding does not grow where gradients are tiny

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"double": False},
    "double": {},
    "squared errors": {"huber": None},
    "dueling": {"dueling": True},
    "prioritized": {"prioritized": True, "beta": LinearSchedule(0.4, 1.0)},
    "no bound on gradients": {"max_grad_norm": None},
    "small bound on gradients": {"max_grad_norm": 0.1},
    "c51": {"distributional": "c51", "atoms": 11, "return_bounds": (-3.0, 3.0)},
    "c51, dueling, prioritized": {
        "distributional": "c51",
        "atoms": 11,
        "return_bounds": (-3.0, 3.0),
        "dueling": True,
        "prioritized": True,
        "double": False,
    },
    "quantile": {"distributional": "quantile", "quantiles": 5},
    "quantile without smoothing": {"distributional": "quantile", "quantiles": 5, "huber": None, "dueling": True},
}


def plain_copy(agent: DQN, learner: Any) -> PlainNetwork:
    """The learner's network as plain layers."""
    atoms = agent.returns().size
    plain = PlainNetwork(size=4, units=10, actions=3, atoms=atoms, dueling=agent.dueling)
    weights = learner.network.state_dict()
    names = {"torso.body.0": "hidden", "head.advantage": "advantage", "head.value": "value"}
    plain.load_state_dict(
        {f"{names[name.rpartition('.')[0]]}.{name.rpartition('.')[2]}": array for name, array in weights.items()}
    )
    return plain


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] * (name == "quantile")) for name in SETTINGS]
)
def test_updates_equal_those_of_a_plain_single_file(name: str) -> None:
    agent = DQN(target=TargetCopy(4), optimizer=ADAM, anneal_learning_rate=False, **SETTINGS[name])
    learner = agent.make_learner(SPEC, NETWORK, seed=3)
    reference = PlainDQN(plain_copy(agent, learner), agent, learning_rate=3e-2, eps=1e-3, target_period=4)
    for update in range(9):
        batch, progress = transitions(update), update / 9
        result = learner.update(batch, progress)
        loss, priorities = reference.update(batch, progress)
        assert result.metrics["loss"] == pytest.approx(loss, rel=1e-4)
        assert result.priorities is not None
        np.testing.assert_allclose(result.priorities, priorities, rtol=1e-3, atol=3e-6)
    for mine, theirs in zip(learner.network.parameters(), reference.network.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(learner.target_network.parameters(), reference.target.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_settings_change_what_is_learned() -> None:
    """The comparisons above would say little if different settings did the same."""
    ends: dict[bytes, str] = {}
    for name, settings in SETTINGS.items():
        if name == "no bound on gradients":  # which these batches do not reach
            continue
        learner = DQN(target=TargetCopy(4), optimizer=ADAM, **settings).make_learner(SPEC, NETWORK, seed=3)
        for update in range(9):
            learner.update(transitions(update), update / 9)
        other = ends.setdefault(next(learner.network.parameters()).detach().numpy().tobytes(), name)
        assert other == name


EVERYTHING = {
    "dqn": DQN(target=TargetCopy(3)),
    "quantile": DQN(target=TargetCopy(3), distributional="quantile", quantiles=7, prioritized=True),
    "rainbow": Rainbow(target=TargetCopy(3), hidden=8, atoms=11, optimizer=TorchAdam(1e-3)),
}


@pytest.mark.parametrize("name", list(EVERYTHING))
def test_a_new_learner_goes_on_from_a_state_bit_for_bit(name: str) -> None:
    agent = EVERYTHING[name]
    learner = agent.make_learner(SPEC, NETWORK, seed=3)
    for update in range(4):
        learner.update(transitions(update), 0.1)
    state = pickle.loads(pickle.dumps(learner.state_dict()))
    other = agent.make_learner(SPEC, NETWORK, seed=3)
    other.load_state_dict(state)
    for update in range(4, 9):
        mine, theirs = (each.update(transitions(update), 0.5) for each in (learner, other))
        assert mine.metrics == theirs.metrics
        assert mine.priorities is not None
        assert theirs.priorities is not None
        assert mine.priorities.tobytes() == theirs.priorities.tobytes()
    assert_equal_variables(learner.variables(), other.variables())


def test_a_state_is_a_copy() -> None:
    agent = EVERYTHING["dqn"]
    learner, other = (agent.make_learner(SPEC, NETWORK, seed=3) for _ in range(2))
    learner.update(transitions(0), 0.1)
    state = learner.state_dict()
    other.load_state_dict(state)
    learner.update(transitions(1), 0.1)
    again = agent.make_learner(SPEC, NETWORK, seed=3)
    again.load_state_dict(state)
    assert_equal_variables(again.variables(), other.variables())
    other.update(transitions(1), 0.1)
    assert_equal_variables(other.variables(), learner.variables())


def assert_equal_variables(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert mine.keys() == theirs.keys()
    for name, array in mine.items():
        assert array.tobytes() == theirs[name].tobytes(), name


def test_weights_follow_from_the_seed_and_from_nothing_else() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    learners = [DQN().make_learner(SPEC, NETWORK, seed=seed) for seed in (3, 3, 4)]
    assert torch.equal(torch.random.get_rng_state(), before)
    first, second, other = (learner.variables() for learner in learners)
    assert_equal_variables(first, second)
    assert first["torso.body.0.weight"].tobytes() != other["torso.body.0.weight"].tobytes()


@pytest.mark.parametrize("agent", [DQN(), Rainbow(), rl.R2D2()], ids=["DQN", "Rainbow", "R2D2"])
def test_values_of_far_observations_are_not_proportional_to_those_of_near_ones(agent: Any) -> None:
    """They were, as all biases were 0: values of states further out than those in replay grew without bound."""
    network = agent.make_network(SPEC, MLP((64,), "relu"), 0).eval()
    near = torch.tensor([[0.1, -0.2, 0.3, 0.1]])
    with torch.no_grad():
        features = [network.torso(near * size) for size in (1.0, 100.0)]
    assert (features[1] - 100 * features[0]).abs().max() > 1


def test_values_of_the_default_network_do_not_grow_with_the_observation() -> None:
    """An update would raise the values of states further out more than those that it learns from, and diverge."""
    network = DQN().make_network(SPEC, None, 0)
    near = torch.tensor([[0.1, -0.2, 0.3, 0.1]])
    with torch.no_grad():
        values = {size: network(size * near) for size in (1.0, 100.0, 10_000.0)}
    assert (values[10_000.0] - values[100.0]).abs().max() < 0.1
    assert (values[100.0] - values[1.0]).abs().max() > 0.1, "it tells sizes apart"


def test_noise_differs_between_updates_and_follows_from_the_seed() -> None:
    agent = Rainbow(hidden=8, atoms=11, optimizer=TorchAdam(0.0))  # so that only the noise changes the loss
    losses = [
        [learner.update(transitions(0), 0.0).metrics["loss"] for _ in range(3)]
        for learner in (agent.make_learner(SPEC, NETWORK, seed=3), agent.make_learner(SPEC, NETWORK, seed=3))
    ]
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == 3


def test_a_policy_of_the_same_settings_takes_the_variables() -> None:
    for agent in EVERYTHING.values():
        learner, policy = agent.make_learner(SPEC, NETWORK, seed=3), agent.make_policy(SPEC, NETWORK)
        policy.load(Variables(1, 0.5, learner.variables()))
        shown = transitions(0).columns["observation"]
        choice = policy.act(shown, np.zeros(len(shown), bool), {}, np.random.default_rng(0), greedy=True)
        with torch.no_grad():
            values = learner.network.returns.mean(learner.network.eval()(torch.tensor(shown)))
        assert choice.action.tolist() == values.argmax(-1).tolist()


def test_variables_of_other_settings_are_refused() -> None:
    policy = DQN(dueling=True).make_policy(SPEC, NETWORK)
    with pytest.raises(ValueError, match=r"missing \['head.value.bias', 'head.value.weight'\], too many \[\]"):
        policy.load(Variables(1, 0.0, DQN().make_learner(SPEC, NETWORK, seed=0).variables()))


def test_a_loss_that_is_not_finite_names_the_items() -> None:
    batch = transitions(0)
    bad = changed(batch, reward=np.where(np.arange(16) == 3, np.nan, batch.columns["reward"]))
    with pytest.raises(NotFinite, match="100, 101"):
        DQN().make_learner(SPEC, NETWORK, seed=3).update(bad, 0.0)


def test_a_loss_that_is_not_finite_may_be_skipped() -> None:
    learner = DQN(not_finite="skip").make_learner(SPEC, NETWORK, seed=3)
    before, batch = learner.variables(), transitions(0)
    result = learner.update(changed(batch, reward=np.full(16, np.inf, np.float32)), 0.0)
    assert result.priorities is None
    assert_equal_variables(learner.variables(), before)
    assert learner.update(batch, 0.0).priorities is not None


def test_observations_may_be_dictionaries() -> None:
    spec = EnvironmentSpec({"a": ArraySpec((1,)), "b": ArraySpec((3,))}, DiscreteAction(3))
    flat, named = (DQN().make_learner(each, NETWORK, seed=3) for each in (SPEC, spec))
    batch = transitions(0)
    columns = {name: array for name, array in batch.columns.items() if "observation" not in name}
    for name in ("observation", "next_observation"):
        array = batch.columns[name]
        columns |= {f"{name}.a": array[:, :1], f"{name}.b": array[:, 1:]}
    both = flat.update(batch, 0.0), named.update(dataclasses.replace(batch, columns=columns), 0.0)
    assert both[0].metrics == both[1].metrics


def test_priorities_are_never_zero() -> None:
    agent = DQN(optimizer=TorchAdam(0.0))
    learner, batch = agent.make_learner(SPEC, NETWORK, seed=3), transitions(0)
    with torch.no_grad():
        for parameter in learner.network.parameters():
            parameter.zero_()
    done = changed(batch, reward=np.zeros(16, np.float32), discount=np.zeros(16, np.float32))
    result = learner.update(done, 0.0)
    assert result.priorities is not None
    assert result.priorities.tolist() == [1e-6] * 16


def test_updates_of_a_round_follow_from_the_limiter() -> None:
    """The zoo's setting for CartPole: 128 updates after 256 steps; and one per four steps, as for Atari."""
    for unroll, envs, batch_size, samples, per_round in ((64, 4, 64, 32.0, 128), (16, 1, 32, 8.0, 4)):
        agent = DQN(unroll=unroll, envs=envs, batch_size=batch_size, samples_per_insert=samples, learning_starts=1_000)
        formula = agent.make_tables(SPEC, groups=1, seed=0)[0].limiter.formula()
        updates = [0]
        inserts = taken = 0
        for _ in range(200):
            assert inserts + unroll * envs <= 1_000 or (
                (inserts + unroll * envs) * samples - taken <= formula.max_diff
            ), "the next round has to fit in"
            inserts += unroll * envs
            updates.append(0)
            while inserts >= formula.min_size and inserts * samples - taken - batch_size >= formula.min_diff:
                taken += batch_size
                updates[-1] += 1
        started = next(number for number, count in enumerate(updates) if count)
        assert started == math.ceil(1_000 / (unroll * envs))
        assert set(updates[started + 1 :]) == {per_round}
        assert updates[started] <= 2 * per_round + 1


def test_tables_are_sampled_by_priority_only_if_asked() -> None:
    uniform = DQN().make_tables(SPEC, groups=2, seed=5)[0]
    prioritized = DQN(prioritized=True, priority_exponent=0.7).make_tables(SPEC, groups=2, seed=5)[0]
    assert (uniform.name, uniform.max_size, uniform.seed) == ("replay", 100_000, 5)
    assert isinstance(uniform.sampler, Uniform)
    assert prioritized.sampler == Prioritized(0.7)
    assert uniform.signature is not None
    assert set(uniform.signature) == {"observation", "next_observation", "action", "reward", "discount"}


def test_agents_are_compared_and_pickled() -> None:
    assert DQN() == DQN()
    assert DQN() != DQN(double=False)
    assert pickle.loads(pickle.dumps(Rainbow(n_step=5))) == Rainbow(n_step=5)
    assert (Rainbow().n_step, Rainbow().distributional, Rainbow().prioritized) == (3, "c51", True)


def test_continuous_actions_are_refused() -> None:
    spec = EnvironmentSpec(ArraySpec((4,)), ContinuousAction((-1.0,), (1.0,)))
    with pytest.raises(ValueError, match=r"Rainbow values each of a number of discrete actions.*use SAC or TD3"):
        Rainbow().check(spec)
    DQN().check(SPEC)


def test_networks_with_memory_are_refused() -> None:
    with pytest.raises(ValueError, match="single transitions, but the network has the recurrent state hidden, cell"):
        DQN().make_learner(SPEC, LSTM(NETWORK, 8), seed=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"distributional": "c52"}, "distributional must be one of 'none', 'c51', 'quantile', not 'c52'"),
        ({"batch_size": 0}, "batch_size=0 has to be a number of transitions"),
        ({"learning_starts": 10, "replay_size": 5}, "learning_starts=10 has to be from 1 to replay_size=5 transitions"),
        (
            {"learning_starts": 10, "replay_size": 263},
            r"replay_size=263 has to be at least 264, the transitions of one b",
        ),
        ({"distributional": "c51", "return_bounds": (1.0, 1.0)}, "low=1.0, high=1.0, atoms=51; low must be below high"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DQN(**settings)


@pytest.mark.parametrize("agent", [rl.DQN(), rl.R2D2()], ids=["DQN", "R2D2"])
def test_statistics_that_would_not_be_kept_are_refused(agent: Any) -> None:
    spec = environment_spec(rl.Gymnasium("CartPole-v1"))
    with pytest.raises(ValueError, match=r"keeps no statistics of observations, so rl.Normalised would have no effect"):
        agent.make_learner(spec, rl.Normalised(rl.MLP((8,))), seed=0)
