"""What SAC and TD3 have in common."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ropewalk.errors import NotFinite
from ropewalk.rl.agents.continuous import ContinuousAgent
from ropewalk.rl.agents.sac import SAC
from ropewalk.rl.agents.td3 import TD3
from ropewalk.rl.blocks import Block
from ropewalk.rl.environments.spec import (
    ArraySpec,
    ContinuousAction,
    DiscreteAction,
    EnvironmentSpec,
    MultiDiscreteAction,
)
from ropewalk.rl.learners.learner import Learner
from ropewalk.rl.networks.concatenate import Concatenate
from ropewalk.rl.networks.lstm import LSTM
from ropewalk.rl.networks.mlp import MLP
from ropewalk.rl.networks.normalisation import Normalised
from ropewalk.rl.replay.batch import Batch
from ropewalk.rl.replay.tables import ReplayTables
from ropewalk.rl.variables import Variables
from tests.rl.agents.transition_batches import SPEC, random_batch

NETWORK = MLP((16, 16), activation="relu")
AGENTS: list[type[ContinuousAgent]] = [SAC, TD3]
each_agent = pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.__name__)

DICTIONARY = EnvironmentSpec({"image": ArraySpec((2, 2)), "speed": ArraySpec((1,))}, SPEC.action)


def weights(learner: Learner) -> dict[str, Any]:
    """All tensors of a state, flat."""
    flat: dict[str, Any] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                walk(f"{prefix}.{key}", each)
        elif isinstance(value, Tensor):
            flat[prefix] = value.numpy().tobytes()
        else:
            flat[prefix] = value

    walk("", learner.state_dict())
    return flat


def train(learner: Learner, updates: range) -> Learner:
    for number in updates:
        learner.update(random_batch(seed=number), 0.0)
    return learner


# --- learner ----------------------------------------------------------------------------------------------------------


@each_agent
def test_equal_seeds_and_batches_give_equal_bits(agent: type[ContinuousAgent]) -> None:
    first, second = (train(agent().make_learner(SPEC, NETWORK, seed=5), range(5)) for _ in range(2))
    assert weights(first) == weights(second)
    assert weights(first) != weights(train(agent().make_learner(SPEC, NETWORK, seed=6), range(5)))


@each_agent
def test_a_new_learner_goes_on_from_a_state_with_equal_bits(agent: type[ContinuousAgent]) -> None:
    whole = train(agent().make_learner(SPEC, NETWORK, seed=5), range(7))
    begun = train(agent().make_learner(SPEC, NETWORK, seed=5), range(3))
    other = agent().make_learner(SPEC, NETWORK, seed=99)
    other.load_state_dict(pickle.loads(pickle.dumps(begun.state_dict())))
    assert weights(train(other, range(3, 7))) == weights(whole)


@each_agent
def test_a_state_is_a_copy_in_both_directions(agent: type[ContinuousAgent]) -> None:
    learner, other = (agent().make_learner(SPEC, NETWORK, seed=seed) for seed in (5, 6))
    state = train(learner, range(2)).state_dict()
    before = weights(learner)
    other.load_state_dict(state)
    train(other, range(4))
    assert weights(learner) == before
    train(learner, range(4))
    other.load_state_dict(state)
    assert weights(other) == before


@each_agent
def test_the_global_generator_of_torch_is_neither_used_nor_changed(agent: type[ContinuousAgent]) -> None:
    before = torch.get_rng_state()
    learner = train(agent().make_learner(SPEC, NETWORK, seed=5), range(2))
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        assert weights(train(agent().make_learner(SPEC, NETWORK, seed=5), range(2))) == weights(learner)


@each_agent
def test_the_actor_is_trained_by_the_critics_of_the_moment(agent: type[ContinuousAgent]) -> None:
    learner = cast("Any", train(agent().make_learner(SPEC, NETWORK, seed=5), range(4)))
    learner.load_state_dict(learner.state_dict())
    for mine, theirs in zip(learner.fixed_critics.parameters(), learner.critics.parameters(), strict=True):
        assert mine.data_ptr() == theirs.data_ptr() and not mine.requires_grad


def poisoned(batch: Batch, column: str) -> Batch:
    columns = copy.deepcopy(dict(batch.columns))
    columns[column][3] = np.nan  # pyright: ignore[reportArgumentType]
    return Batch(columns, batch.info)


@each_agent
@pytest.mark.parametrize("column", ["observation", "reward", "next_observation"])
def test_a_loss_that_is_nan_raises_with_keys_and_actors(agent: type[ContinuousAgent], column: str) -> None:
    learner = agent().make_learner(SPEC, NETWORK, seed=5)
    with pytest.raises(NotFinite) as caught:
        learner.update(poisoned(random_batch(), column), 0.0)
    assert caught.value.keys == tuple(range(32)) and set(caught.value.run_ids) == {"2#1"}


@each_agent
def test_a_loss_that_is_nan_is_skipped_and_counted_if_told_so(agent: type[ContinuousAgent]) -> None:
    learner = agent(not_finite="skip").make_learner(SPEC, NETWORK, seed=5)
    before = learner.variables()
    metrics = learner.update(poisoned(random_batch(), "reward"), 0.0).metrics
    assert metrics["skipped"] >= 1
    learner.update(random_batch(), 0.0)
    train(learner, range(4))
    after = learner.variables()
    assert all(np.isfinite(array).all() for array in after.values())
    assert any((after[name] != before[name]).any() for name in before)


@each_agent
@pytest.mark.parametrize(
    ("network", "spec"),
    [
        (lambda spec: nn.Sequential(nn.Linear(spec.observation.shape[0], 8), nn.Tanh()), SPEC),
        (MLP((8,), layer_norm=True), SPEC),
        (MLP((8,)), DICTIONARY),
        (Concatenate({"image": MLP((8,)), "speed": MLP((4,))}), DICTIONARY),
        (MLP((8,)), EnvironmentSpec(ArraySpec((2, 2)), SPEC.action)),
        (None, SPEC),
    ],
    ids=["module", "layer_norm", "dictionary", "concatenate", "matrix", "default"],
)
def test_all_networks_without_memory_are_trained(
    agent: type[ContinuousAgent], network: Callable[[EnvironmentSpec], nn.Module] | None, spec: EnvironmentSpec
) -> None:
    learner = cast("Any", agent().make_learner(spec, network, seed=1))
    before = {name: module.state_dict() for name, module in learner.modules().items()}
    before = copy.deepcopy(before)
    for number in range(2):
        learner.update(random_batch(spec, seed=number), 0.0)
    for name, module in learner.modules().items():
        for key, tensor in module.state_dict().items():
            assert not torch.equal(tensor, before[name][key]), (name, key)
    policy = agent().make_policy(spec, network)
    policy.load(Variables(2, 0.0, learner.variables()))


@each_agent
def test_a_network_with_memory_is_refused(agent: type[ContinuousAgent]) -> None:
    with pytest.raises(ValueError, match=f"{agent.__name__} learns from single transitions"):
        agent().make_learner(SPEC, LSTM(NETWORK, 8), seed=0)


# --- settings ---------------------------------------------------------------------------------------------------------


@each_agent
def test_settings_are_compared_printed_and_pickled(agent: type[ContinuousAgent]) -> None:
    settings = agent(batch_size=64)
    assert pickle.loads(pickle.dumps(settings)) == settings != agent()
    assert "batch_size=64" in repr(settings)


@each_agent
def test_actions_that_are_not_continuous_or_not_bounded_are_refused(agent: type[ContinuousAgent]) -> None:
    agent().check(SPEC)
    with pytest.raises(ValueError, match=rf"{agent.__name__} chooses continuous .*DiscreteAction\(num=2\); use DQN or"):
        agent().check(EnvironmentSpec(ArraySpec((3,)), DiscreteAction(2)))
    with pytest.raises(ValueError, match=r"use PPO or IMPALA"):  # DQN, which it named, refuses several choices, too
        agent().check(EnvironmentSpec(ArraySpec((3,)), MultiDiscreteAction((2, 3))))
    for low, high in ((-np.inf, 1.0), (-1.0, np.inf), (1.0, 1.0)):
        with pytest.raises(ValueError, match="needs finite bounds"):
            agent().check(EnvironmentSpec(ArraySpec((3,)), ContinuousAction((low,), (high,))))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": None}, "batch_size=None"),
        ({"learning_starts": 11, "replay_size": 10}, "learning_starts=11"),
        (
            {"learning_starts": 4, "replay_size": 5, "envs": 2},
            "replay_size=5 has to be at least 8, the transitions of one",
        ),
        ({"updates_per_step": 0.0}, "updates_per_step=0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SAC(**settings)


@pytest.mark.parametrize(("unroll", "envs", "groups"), [(1, 1, 1), (4, 2, 1), (8, 4, 3)])
@pytest.mark.parametrize("updates_per_step", [0.25, 1.0, 2.0])
def test_in_lockstep_the_limiter_gives_each_step_its_updates(
    unroll: int, envs: int, groups: int, updates_per_step: float
) -> None:
    settings = SAC(
        batch_size=8, unroll=unroll, envs=envs, learning_starts=64, updates_per_step=updates_per_step, replay_size=300
    )
    tables = ReplayTables(settings.make_tables(SPEC, groups=groups, seed=0))
    adders = [settings.make_adder(SPEC) for _ in range(groups)]
    updates = steps = 0
    for number in range(600 // (unroll * envs * groups)):
        for group, adder in enumerate(adders):
            insertion = adder.add(random_block(unroll, envs, f"{group}#0", number))
            assert tables.can_insert(insertion)  # otherwise lock-step would never go on
            tables.insert(insertion)
        steps += unroll * envs * groups
        while tables.can_sample("replay", 8) == 8:
            tables.sample("replay", 8)
            updates += 1
        if steps < 64:
            assert updates == 0
    one_round = updates_per_step * unroll * envs * groups + 1
    assert abs(updates - updates_per_step * (steps - 64)) <= one_round + 1


def random_block(steps: int, envs: int, run_id: str, number: int) -> Block:
    rng = np.random.default_rng(number)
    columns = {
        "observation": rng.normal(size=(steps + 1, envs, 3)).astype(np.float32),
        "first": np.zeros((steps + 1, envs), bool),
        "action": rng.uniform(0, 1, (steps, envs, 2)).astype(np.float32),
        "reward": np.ones((steps, envs), np.float32),
        "terminated": np.zeros((steps, envs), bool),
        "truncated": np.zeros((steps, envs), bool),
        "mask": np.ones((steps, envs), bool),
    }
    return Block(columns, run_id, number, 0, steps * envs)


@each_agent
def test_statistics_of_observations_that_nobody_would_update_are_refused(agent: type[ContinuousAgent]) -> None:
    with pytest.raises(ValueError, match=r"by numbers that stay the same, as gymnasium\.wrappers\.RescaleObservation"):
        agent().make_learner(SPEC, Normalised(NETWORK), seed=0)
