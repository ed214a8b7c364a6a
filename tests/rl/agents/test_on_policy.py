"""What IMPALA, A2C, PPO and APPO have in common."""

from __future__ import annotations

import dataclasses
import pickle
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from ropewalk.errors import NotFinite
from ropewalk.rl.adders.unroll import UnrollAdder
from ropewalk.rl.agents.a2c import A2C
from ropewalk.rl.agents.agent import NetworkFactory
from ropewalk.rl.agents.appo import APPO
from ropewalk.rl.agents.impala import IMPALA
from ropewalk.rl.agents.on_policy import OnPolicyAgent
from ropewalk.rl.agents.ppo import PPO
from ropewalk.rl.blocks import Block
from ropewalk.rl.environments.spec import Array, ArraySpec, DiscreteAction, EnvironmentSpec, MultiDiscreteAction
from ropewalk.rl.networks.lstm import LSTM
from ropewalk.rl.networks.mlp import MLP
from ropewalk.rl.networks.nature_cnn import NatureCNNTorso
from ropewalk.rl.replay.batch import Batch
from ropewalk.rl.replay.tables import ReplayTables
from tests.rl.agents.experience import CONTINUOUS, DISCRETE, assert_close, on_policy, random_batch

AGENTS: tuple[type[IMPALA] | type[A2C] | type[PPO] | type[APPO], ...] = (IMPALA, A2C, PPO, APPO)
MEMORY = {"hidden": 5, "cell": 5}

each_agent = pytest.mark.parametrize("agent", [kind() for kind in AGENTS], ids=lambda agent: type(agent).__name__)


def bits(arrays: Mapping[str, Array]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def as_arrays(state: Any) -> Any:
    """A state with lists in place of tensors and arrays."""
    if isinstance(state, torch.Tensor | np.ndarray):
        return state.tolist()
    if isinstance(state, Mapping):
        return [(name, as_arrays(entry)) for name, entry in state.items()]
    return [as_arrays(entry) for entry in state] if isinstance(state, list | tuple) else repr(state)


def with_columns(batch: Batch, **changed: Array) -> Batch:
    return Batch({**batch.columns, **changed}, batch.info)


# --- settings ---------------------------------------------------------------------------------------------------------


@each_agent
def test_settings_are_compared_printed_and_pickled(agent: OnPolicyAgent) -> None:
    assert pickle.loads(pickle.dumps(agent)) == agent
    assert dataclasses.replace(agent, unroll=7) != agent
    assert re.match(rf"{type(agent).__name__}\(unroll=\d+, envs=\d+, .*optimizer=Torch\w+\(learning_rate=", repr(agent))


@each_agent
@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("unroll", 0, "at least 1"),
        ("envs", 0, "at least 1"),
        ("batch_size", 0, "at least 1, or None"),
        ("discount", 1.5, "from 0 to 1"),
        ("lambda_", -0.1, "from 0 to 1"),
        ("max_grad_norm", 0.0, "above 0, or None"),
        ("reward_scale", float("inf"), "above 0 and finite"),
        ("reward_clip", -1.0, "above 0, or None"),
        ("not_finite", "ignore", "'raise' or 'skip'"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(agent: OnPolicyAgent, name: str, value: Any, rule: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{type(agent).__name__}: {name}={value!r} has to be {rule}")):
        dataclasses.replace(agent, **{name: value})


def test_synchronous_agents_learn_from_one_block_of_each_group() -> None:
    assert [kind().synchronous for kind in AGENTS] == [False, True, True, False]
    assert (PPO().items_of_batch(5), A2C().items_of_batch(5), IMPALA(batch_size=3).items_of_batch(5)) == (5, 5, 3)


@pytest.mark.parametrize("groups", [1, 2, 3, 5])
@pytest.mark.parametrize("batch_size", [1, 2, 4, None])
def test_in_lock_step_the_queue_has_room_for_every_round(groups: int, batch_size: int | None) -> None:
    agent = IMPALA(batch_size=batch_size)
    tables = ReplayTables(agent.make_tables(DISCRETE, groups=groups, seed=0))
    adders = [agent.make_adder(DISCRETE) for _ in range(groups)]
    expected = agent.items_of_batch(groups)
    sampled: list[str] = []
    for number in range(8):
        for group, adder in enumerate(adders):
            columns = {"reward": np.zeros((2, 1), np.float32)}
            insertion = adder.add(Block(columns, f"{group}#0", number, version=number, steps=2))
            assert tables.can_insert(insertion)
            tables.insert(insertion)
        while tables.can_sample(agent.table, expected) == expected:
            sampled += tables.sample(agent.table, expected).info.run_ids
    assert sampled == [f"{group}#0" for _ in range(8) for group in range(groups)][: len(sampled)]
    assert len(sampled) == 8 * groups // expected * expected


def test_images_get_convolutions_and_other_observations_a_perceptron() -> None:
    image = EnvironmentSpec(ArraySpec((84, 84, 4), "uint8", 0, 255), DiscreteAction(3))
    assert isinstance(IMPALA().make_learner(image, None, seed=0).model.torso, NatureCNNTorso)
    assert bits(IMPALA().make_learner(DISCRETE, None, seed=0).variables()) == bits(
        IMPALA().make_learner(DISCRETE, MLP((64, 64)), seed=0).variables()
    )


def test_values_share_the_network_of_images_and_of_memory_and_that_of_impala() -> None:
    def separate(agent: OnPolicyAgent, spec: EnvironmentSpec, network: NetworkFactory | None = None) -> bool:
        return agent.make_learner(spec, network, seed=0).model.value_torso is not None

    image = EnvironmentSpec(ArraySpec((5, 5, 3), "uint8", 0, 255), DiscreteAction(3))
    small, memory = MLP((4,)), LSTM(MLP((4,)), 4)
    for agent in (PPO(), APPO(), A2C()):
        assert [separate(agent, spec, small) for spec in (DISCRETE, CONTINUOUS, image)] == [True, True, False]
        assert [separate(agent, spec, memory) for spec in (DISCRETE, CONTINUOUS)] == [False, False]
    assert [separate(IMPALA(), spec, small) for spec in (DISCRETE, CONTINUOUS, image)] == [False, True, False]
    for choice in (False, True):
        assert separate(PPO(separate_networks=choice), DISCRETE, memory) == choice


# --- learners ---------------------------------------------------------------------------------------------------------


@each_agent
def test_weights_follow_from_the_seed_and_leave_the_global_generator_alone(agent: OnPolicyAgent) -> None:
    before = torch.random.get_rng_state()
    weights = [bits(agent.make_learner(DISCRETE, None, seed=seed).variables()) for seed in (1, 1, 2)]
    assert weights[0] == weights[1] != weights[2]
    assert torch.equal(before, torch.random.get_rng_state())


VARIANTS: dict[str, tuple[Callable[[OnPolicyAgent], OnPolicyAgent], NetworkFactory | None, EnvironmentSpec]] = {
    "plain": (lambda agent: agent, None, DISCRETE),
    "annealed": (lambda agent: dataclasses.replace(agent, anneal_learning_rate=True), None, DISCRETE),
    "normalised": (
        lambda agent: dataclasses.replace(agent, normalise_observations=True, normalise_rewards=True),
        None,
        CONTINUOUS,
    ),
    "memory": (lambda agent: agent, LSTM(MLP((8,)), 5), DISCRETE),
}


@each_agent
@pytest.mark.parametrize("variant", VARIANTS)
def test_updates_continue_bit_for_bit_in_a_new_learner(agent: OnPolicyAgent, variant: str) -> None:
    changed, network, spec = VARIANTS[variant]
    agent = changed(agent)
    batches = [random_batch(spec, number, state=MEMORY if variant == "memory" else None) for number in range(6)]
    through = agent.make_learner(spec, network, seed=1)
    for number, batch in enumerate(batches[:3]):
        through.update(batch, number / 6)
    through.version = 3
    saved = through.state_dict()
    expected = [through.update(batch, (number + 3) / 6).metrics for number, batch in enumerate(batches[3:])]
    continued = agent.make_learner(spec, network, seed=1)
    continued.update(batches[5], 0.0)  # whatever it did before does not matter
    continued.load_state_dict(saved)
    metrics = [continued.update(batch, (number + 3) / 6).metrics for number, batch in enumerate(batches[3:])]
    np.testing.assert_equal(metrics, expected)
    assert bits(continued.variables()) == bits(through.variables())
    assert continued.num_updates == 6


@each_agent
def test_a_state_is_a_copy_that_later_updates_do_not_change(agent: OnPolicyAgent) -> None:
    agent = dataclasses.replace(agent, normalise_observations=True, normalise_rewards=True)
    learner = agent.make_learner(DISCRETE, None, seed=1)
    learner.update(random_batch(DISCRETE, 0), 0.0)
    state, variables = learner.state_dict(), learner.variables()
    before = pickle.dumps(as_arrays((state, variables)))
    learner.update(random_batch(DISCRETE, 1), 0.0)
    learner.load_state_dict(state)
    learner.update(random_batch(DISCRETE, 1), 0.0)
    assert pickle.dumps(as_arrays((state, variables))) == before


@each_agent
@pytest.mark.parametrize("variant", ["plain", "normalised", "memory"])
def test_what_stands_in_masked_steps_changes_nothing(agent: OnPolicyAgent, variant: str) -> None:
    changed, network, spec = VARIANTS[variant]
    agent = changed(agent)
    batch = random_batch(spec, 0, steps=12, state=MEMORY if variant == "memory" else None)
    mask = batch.columns["mask"].astype(np.bool_)
    assert not mask.all()
    action = batch.columns["action"].copy()
    action[~mask] = 1 if action.dtype == np.int64 else 77.0
    others = with_columns(
        batch, action=action, log_prob=np.where(mask, batch.columns["log_prob"], np.float32(-9.0)).astype(np.float32)
    )
    learners = [agent.make_learner(spec, network, seed=1) for _ in range(2)]
    metrics = [learner.update(each, 0.0).metrics for learner, each in zip(learners, (batch, others), strict=True)]
    np.testing.assert_equal(metrics[0], metrics[1])
    assert bits(learners[0].variables()) == bits(learners[1].variables())


@each_agent
def test_the_ratio_of_probabilities_is_one_on_policy_with_normalised_observations_too(agent: OnPolicyAgent) -> None:
    agent = dataclasses.replace(
        agent, normalise_observations=True, **({"epochs": 1, "minibatches": 1} if isinstance(agent, PPO) else {})
    )
    learner = agent.make_learner(DISCRETE, None, seed=1)
    learner.update(random_batch(DISCRETE, 0), 0.0)
    batch = on_policy(random_batch(DISCRETE, 1), learner, DISCRETE)
    metrics = learner.update(batch, 0.0).metrics
    assert {name: metrics[name] for name in metrics if name in ("approx_kl", "clip_fraction")} in (
        {},
        {"approx_kl": pytest.approx(0, abs=1e-6), "clip_fraction": 0.0},
    )
    assert metrics.get("ratio_max", 1.0) == pytest.approx(1.0, abs=1e-6)


def test_statistics_of_observations_take_in_each_step_that_counts_once() -> None:
    agent = A2C(normalise_observations=True)
    learner = agent.make_learner(DISCRETE, None, seed=1)
    batches = [random_batch(DISCRETE, number) for number in range(3)]
    for batch in batches:
        learner.update(batch, 0.0)
    seen = np.concatenate(
        [batch.columns["observation"][:, :-1][batch.columns["mask"].astype(np.bool_)] for batch in batches]
    )
    moments = {name.rpartition(".")[2]: array for name, array in learner.variables().items() if "moments" in name}
    assert_close(moments["mean"], seen.mean(0, dtype=np.float64), 1e-6)
    assert_close(moments["inverse"], 1 / seen.std(0, dtype=np.float64))


def test_rewards_are_scaled_then_clipped() -> None:
    batch = random_batch(DISCRETE, 0)
    reward = np.clip(np.multiply(batch.columns["reward"], 3.0, dtype=np.float32), -1.5, 1.5)
    weights = [
        agent.make_learner(DISCRETE, None, seed=1) for agent in (IMPALA(reward_scale=3.0, reward_clip=1.5), IMPALA())
    ]
    weights[0].update(batch, 0.0)
    weights[1].update(with_columns(batch, reward=reward), 0.0)
    assert bits(weights[0].variables()) == bits(weights[1].variables())


@each_agent
def test_several_choices_at_once_can_be_learned(agent: OnPolicyAgent) -> None:
    spec = EnvironmentSpec(ArraySpec((3,)), MultiDiscreteAction((2, 3)))
    batch = random_batch(DISCRETE, 0)
    action = np.stack([batch.columns["action"], batch.columns["action"]], -1)
    metrics = agent.make_learner(spec, None, seed=0).update(with_columns(batch, action=action), 0.0).metrics
    assert metrics["entropy"] == pytest.approx(np.log(2) + np.log(3), abs=0.05)


@each_agent
def test_observations_of_several_names_can_be_learned_from(agent: OnPolicyAgent) -> None:
    spec = EnvironmentSpec({"a": ArraySpec((3,)), "b": ArraySpec((2,))}, DiscreteAction(2))
    batch = random_batch(DISCRETE, 0)
    columns = dict(batch.columns)
    columns["observation.a"] = columns.pop("observation")
    columns["observation.b"] = columns["observation.a"][..., :2].copy()
    learner = dataclasses.replace(agent, normalise_observations=True).make_learner(spec, None, seed=0)
    before = learner.variables()
    learner.update(Batch(columns, batch.info), 0.0)
    assert [name for name, array in learner.variables().items() if (array == before[name]).all()] == []


# --- age of blocks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", [IMPALA(max_policy_lag=3), APPO(max_policy_lag=3)], ids=["IMPALA", "APPO"])
def test_blocks_that_are_too_old_are_dropped_and_counted(agent: OnPolicyAgent) -> None:
    batch = random_batch(DISCRETE, 0, blocks=4, versions=(10, 6, 7, 5))
    learner, other = (agent.make_learner(DISCRETE, None, seed=1) for _ in range(2))
    learner.version = other.version = 10
    metrics = learner.update(batch, 0.0).metrics
    assert (metrics["policy_lag_max"], metrics["policy_lag"], metrics["num_dropped"]) == (5.0, 3.0, 2.0)
    assert other.update(batch.take(np.array([0, 2])), 0.0).metrics["num_dropped"] == 0.0
    assert bits(learner.variables()) == bits(other.variables())


def test_a_batch_of_blocks_that_are_all_too_old_changes_no_weights() -> None:
    learner = IMPALA(max_policy_lag=3).make_learner(DISCRETE, None, seed=1)
    before = bits(learner.variables())
    learner.version = 4
    assert learner.update(random_batch(DISCRETE, 0), 0.0).metrics == {
        "policy_lag": 4.0,
        "policy_lag_min": 4.0,
        "policy_lag_max": 4.0,
        "num_dropped": 2.0,
    }
    assert (bits(learner.variables()), learner.num_updates) == (before, 0)


@each_agent
def test_a_batch_whose_only_steps_began_episodes_changes_no_weights(agent: OnPolicyAgent) -> None:
    """Of one environment and blocks of one step, each block after the end of an episode is like that."""
    batch = random_batch(DISCRETE, 0, blocks=2, steps=1, envs=1)
    batch = with_columns(batch, mask=np.zeros((2, 1, 1), np.bool_))
    learner = dataclasses.replace(agent, normalise_observations=True).make_learner(DISCRETE, None, seed=1)
    before = bits(learner.variables())
    assert "loss" not in learner.update(batch, 0.0).metrics
    assert (bits(learner.variables()), learner.num_updates) == (before, 0)
    assert len(learner.usable(batch)) == 0, "so that one of several learners draws again"


# --- NaN --------------------------------------------------------------------------------------------------------------


def poisoned(seed: int) -> Batch:
    batch = random_batch(DISCRETE, seed)
    reward = batch.columns["reward"].copy()
    reward[1, 0, 0] = np.nan
    return with_columns(batch, reward=reward)


@each_agent
def test_a_loss_that_is_not_finite_raises_with_the_items_of_the_batch(agent: OnPolicyAgent) -> None:
    learner = agent.make_learner(DISCRETE, None, seed=1)
    with pytest.raises(NotFinite, match=r"keys \[100, 101\], made by the actors \['0#0', '1#0'\]") as caught:
        learner.update(poisoned(0), 0.0)
    assert (caught.value.column, caught.value.keys, caught.value.run_ids) == ("loss", (100, 101), ("0#0", "1#0"))


@each_agent
def test_batches_that_are_not_finite_can_be_skipped_and_ten_steps_in_a_row_raise(agent: OnPolicyAgent) -> None:
    kept = {"epochs": 1, "minibatches": 1} if isinstance(agent, PPO) else {}
    learner = dataclasses.replace(agent, not_finite="skip", **kept).make_learner(DISCRETE, None, seed=1)
    learner.update(random_batch(DISCRETE, 0), 0.0)
    before = bits(learner.variables())
    for number in range(9):
        assert learner.update(poisoned(number), 0.0).metrics["num_skipped"] == number + 1
    assert bits(learner.variables()) == before
    learner.update(random_batch(DISCRETE, 1), 0.0)  # begins the count anew
    for number in range(9):
        learner.update(poisoned(number), 0.0)
    with pytest.raises(NotFinite, match="for the 10th time in a row"):
        learner.update(poisoned(9), 0.0)


def test_blocks_become_items_of_the_table_that_is_sampled() -> None:
    agent = PPO()
    assert isinstance(agent.make_adder(DISCRETE), UnrollAdder)
    assert [table.name for table in agent.make_tables(DISCRETE, groups=2, seed=0)] == [agent.table]
