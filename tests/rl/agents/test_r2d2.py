from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ropewalk.rl.adders.sequence import SequenceAdder
from ropewalk.rl.agents.r2d2 import R2D2
from ropewalk.rl.environments.spec import ArraySpec, DiscreteAction, EnvironmentSpec, MultiDiscreteAction
from ropewalk.rl.learners.learner import Learner
from ropewalk.rl.learners.optimizers import TorchAdam
from ropewalk.rl.learners.r2d2_learner import R2D2Learner
from ropewalk.rl.learners.targets import TargetCopy
from ropewalk.rl.networks.lstm import LSTM
from ropewalk.rl.networks.mlp import MLP
from ropewalk.rl.replay.batch import Batch
from ropewalk.rl.replay.selectors import Prioritized
from ropewalk.rl.variables import Variables
from tests.rl.agents.batches import changed, sequences
from tests.rl.agents.r2d2_reference import PlainR2D2, PlainRecurrent

SPEC = EnvironmentSpec(ArraySpec((4,)), DiscreteAction(3))
NETWORK = LSTM(MLP((7,), "relu"), 5)
ADAM = TorchAdam(3e-2, eps=1e-3)


def agent(**settings: Any) -> R2D2:
    """An agent for the sequences of `batches`."""
    defaults: dict[str, Any] = {
        "unroll": 4,
        "period": 4,
        "burn_in": 3,
        "trace": 8,
        "n_step": 3,
        "discount": 0.9,
        "dueling": False,
        "target": TargetCopy(3),
        "optimizer": ADAM,
        "max_grad_norm": 0.5,
    }
    return R2D2(**{**defaults, **settings})


def plain_copy(learner: R2D2Learner) -> PlainRecurrent:
    plain = PlainRecurrent(size=4, units=7, memory=5, actions=3)
    names = {
        "torso.inner.body.0.": "hidden.",
        "torso.memory.": "memory.",
        "head.advantage.": "values.",
    }
    weights: dict[str, torch.Tensor] = {}
    for name, tensor in learner.network.state_dict().items():
        start = next(prefix for prefix in names if name.startswith(prefix))
        weights[names[start] + name.removeprefix(start).removesuffix("_l0")] = tensor
    plain.load_state_dict(weights)
    return plain


@pytest.mark.parametrize(
    ("n_step", "burn_in"), [(1, 0), (3, 3), *(pytest.param(*one, marks=pytest.mark.soak) for one in ((1, 3), (3, 0)))]
)
def test_updates_equal_those_of_plain_loops(burn_in: int, n_step: int) -> None:
    settings = agent(burn_in=burn_in, n_step=n_step)
    learner = settings.make_learner(SPEC, NETWORK, seed=3)
    reference = PlainR2D2(plain_copy(learner), settings, learning_rate=3e-2, eps=1e-3, target_period=3)
    for update in range(6):
        batch = sequences(update)
        result = learner.update(batch, 0.5)
        loss, priorities = reference.update(batch)
        assert result.metrics["loss"] == pytest.approx(loss, rel=1e-4)
        assert result.priorities is not None
        np.testing.assert_allclose(result.priorities, priorities, rtol=1e-3, atol=1e-5)
    theirs = dict(reference.network.named_parameters())
    for name, mine in plain_copy(learner).named_parameters():
        torch.testing.assert_close(mine, theirs[name], rtol=1e-3, atol=1e-5)


def numbers(batch: Batch, name: str) -> NDArray[Any]:
    return batch.columns[name]


def outcome(batch: Batch, **settings: Any) -> bytes:
    """Priorities and weights after an update, as bytes."""
    learner = agent(**settings).make_learner(SPEC, NETWORK, seed=3)
    result = learner.update(batch, 0.0)
    assert result.priorities is not None
    return result.priorities.tobytes() + b"".join(array.tobytes() for array in learner.variables().values())


def test_masked_steps_count_nowhere() -> None:
    batch = sequences(1, ends=0.4)
    mask = batch.columns["mask"]
    assert not mask[:, 3:-1].all()
    reward = np.where(mask, batch.columns["reward"], 99.0).astype(np.float32)
    action = np.where(mask, batch.columns["action"], 1 - numbers(batch, "action") % 2)
    assert outcome(changed(batch, reward=reward, action=action)) == outcome(batch)
    assert outcome(changed(batch, reward=numbers(batch, "reward") + np.float32(1))) != outcome(batch)


def test_sequences_without_a_recurrent_state_begin_with_that_of_an_episode() -> None:
    batch = sequences(1)
    zeros = {name: np.zeros_like(batch.columns[name]) for name in ("state.hidden", "state.cell")}
    recorded = replace(batch, columns={name: batch.columns[name] for name in batch.columns if name not in zeros})
    assert outcome(recorded) == outcome(changed(batch, **zeros)) != outcome(batch)


def test_the_burn_in_has_no_loss() -> None:
    batch = sequences(1, ends=0.0)
    reward, action = (np.array(batch.columns[name]) for name in ("reward", "action"))
    reward[:, :3] = 99.0
    action[:, :3] = 0
    assert outcome(changed(batch, reward=reward, action=action)) == outcome(batch)


def test_the_burn_in_has_no_gradient() -> None:
    """Weights that only the burn-in uses get no gradient: an input that is 0 afterwards."""
    batch = sequences(1)
    observation = np.array(batch.columns["observation"])
    observation[:, 3:, 0] = 0.0
    for burn_in, is_zero in ((3, True), (0, False)):
        learner = agent(burn_in=burn_in).make_learner(SPEC, NETWORK, seed=3)
        learner.update(changed(batch, observation=observation), 0.0)
        gradient = learner.network.torso.get_parameter("inner.body.0.weight").grad
        assert gradient is not None
        assert (gradient[:, 0] == 0).all().item() is is_zero
        assert (gradient[:, 1] != 0).any()


def test_the_burn_in_brings_both_networks_up_to_date() -> None:
    batch = sequences(1, ends=0.0)
    columns = {**batch.columns, "first": np.zeros_like(batch.columns["first"])}
    other = {**columns, "state.hidden": numbers(batch, "state.hidden") + np.float32(1)}
    learner = agent().make_learner(SPEC, NETWORK, seed=3)
    with torch.no_grad():
        for parameter in learner.target_network.parameters():
            parameter.add_(0.1)
        mine, theirs = learner._values(columns), learner._values(other)
        whole = learner.network, learner.target_network
        for values, changed_values, network in zip(mine, theirs, whole, strict=True):
            assert values.shape == (9, 6, 3)
            assert not torch.allclose(values, changed_values)
            state = {name: torch.tensor(columns[f"state.{name}"]) for name in ("hidden", "cell")}
            observation = torch.tensor(columns["observation"]).transpose(0, 1)
            full, _ = network.unroll(observation, torch.zeros(12, 6, dtype=torch.bool), state)
            torch.testing.assert_close(values, full[3:])


def test_the_state_is_forgotten_where_an_episode_begins() -> None:
    batch = sequences(1, ends=0.0)
    first = np.zeros_like(batch.columns["first"])
    first[:, 3] = True
    begun = changed(batch, first=first)
    other = changed(begun, **{"state.hidden": numbers(begun, "state.hidden") + np.float32(1)})
    assert outcome(begun) == outcome(other)


def test_a_sequence_without_a_step_that_counts_keeps_the_least_priority() -> None:
    batch = sequences(1)
    mask = np.array(batch.columns["mask"])
    mask[2] = False
    result = agent().make_learner(SPEC, NETWORK, seed=3).update(changed(batch, mask=mask), 0.0)
    assert result.priorities is not None
    assert result.priorities[2] == pytest.approx(1e-6)
    assert (np.delete(result.priorities, 2) > 1e-3).all()


def test_a_new_learner_goes_on_from_a_state_bit_for_bit() -> None:
    settings = agent(dueling=True, hidden=6)
    learner: Learner = settings.make_learner(SPEC, NETWORK, seed=3)
    for update in range(4):
        learner.update(sequences(update), 0.1)
    other = settings.make_learner(SPEC, NETWORK, seed=8)
    other.load_state_dict(pickle.loads(pickle.dumps(learner.state_dict())))
    for update in range(4, 9):
        mine, theirs = (each.update(sequences(update), 0.5) for each in (learner, other))
        assert mine.metrics == theirs.metrics
        assert mine.priorities is not None
        assert theirs.priorities is not None
        assert mine.priorities.tobytes() == theirs.priorities.tobytes()
    for name, array in learner.variables().items():
        assert array.tobytes() == other.variables()[name].tobytes()


def test_a_policy_takes_the_variables_and_its_own_rungs() -> None:
    settings = agent(evaluation_epsilon=0.0)
    learner = settings.make_learner(SPEC, NETWORK, seed=3)
    policies = [settings.make_policy(SPEC, NETWORK, group=group, groups=2) for group in range(2)]
    shown = np.random.default_rng(0).standard_normal((4_000, 4), np.float32)
    others = []
    for policy in policies:
        policy.load(Variables(1, 0.5, learner.variables()))
        state = policy.initial_state(4_000)
        best = policy.act(shown, np.ones(4_000, bool), state, np.random.default_rng(0), greedy=True).action
        explored = policy.act(shown, np.ones(4_000, bool), state, np.random.default_rng(0)).action
        others.append((explored != best).mean())
    assert others[0] > 2 * others[1] > 0


def test_sequences_are_as_long_as_burn_in_and_trace_and_a_row_to_bootstrap_from() -> None:
    adder = R2D2().make_adder(SPEC)
    assert isinstance(adder, SequenceAdder)
    assert (adder._length, adder._period) == (121, 40)
    table = R2D2().make_tables(SPEC, groups=2, seed=4)[0]
    assert table.sampler == Prioritized(0.9)
    formula = table.limiter.formula()
    assert (formula.samples_per_insert, formula.min_size) == (4.0, 1_000)
    assert formula.max_diff - formula.min_diff == 2 * (4 * 16 + 64)


def test_actions_that_are_not_discrete_are_refused() -> None:
    with pytest.raises(ValueError, match="R2D2 values each of a number of discrete actions"):
        R2D2().check(EnvironmentSpec(ArraySpec((4,)), MultiDiscreteAction((2, 3))))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unroll": 30}, "period=40 is not a multiple of unroll=30"),
        ({"trace": 0}, "burn_in=40 and trace=0"),
        ({"burn_in": -1}, "burn_in=-1 and trace=80"),
        ({"batch_size": None}, "batch_size=None has to be a number of sequences"),
        ({"learning_starts": 5, "replay_size": 7}, "replay_size=7 has to be at least 8, the sequences of one block"),
        ({"learning_starts": 10, "replay_size": 5}, "learning_starts=10 has to be from 1 to replay_size=5 sequences"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        R2D2(**settings)
