"""PPO against a single-file implementation in plain torch, which shares no code with it."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ropewalk.rl.agents.ppo import PPO
from ropewalk.rl.environments.gymnasium_env import Gymnasium
from ropewalk.rl.learners.optimizers import TorchAdam
from ropewalk.rl.networks.lstm import LSTM
from ropewalk.rl.networks.mlp import MLP
from ropewalk.rl.replay.batch import Batch
from ropewalk.rl.schedules import LinearSchedule
from ropewalk.rl.seeds import generator
from ropewalk.testing.recall import RecallTask
from tests.rl.agents.experience import CONTINUOUS, DISCRETE, assert_close, random_batch
from tests.rl.agents.lock_step_training import reaches, score_of, train

SEED = 5
CARTPOLE = Gymnasium("CartPole-v1")


class ReferencePPO:
    """PPO as CleanRL's ppo.py and ppo_continuous_action.py have it, with loops over single steps.

    Steps that only begin an episode are left out of the batch. CleanRL's environments reset in the step that ends an
    episode, so there are none; what a truncated episode is bootstrapped from is the observation after the step.
    """

    def __init__(self, weights: dict[str, Any], settings: PPO) -> None:
        self.settings = settings
        self.continuous = "policy.log_std" in weights
        self.actor = self._network(weights, "torso", "policy")
        self.critic = self._network(weights, "value_torso", "value")
        parameters = [*self.actor.parameters(), *self.critic.parameters()]
        if self.continuous:
            self.log_std = nn.Parameter(torch.as_tensor(weights["policy.log_std"].copy()))
            parameters.append(self.log_std)
        self.parameters = parameters
        self.optimizer = torch.optim.Adam(parameters, lr=1e-2, eps=1e-5)

    @staticmethod
    def _network(weights: dict[str, Any], torso: str, head: str) -> nn.Sequential:
        names = [f"{torso}.body.0", f"{torso}.body.2", f"{head}.linear"]
        layers: list[nn.Module] = []
        for name in names:
            weight = torch.as_tensor(weights[f"{name}.weight"].copy())
            linear = nn.Linear(weight.shape[1], weight.shape[0])
            linear.load_state_dict({"weight": weight, "bias": torch.as_tensor(weights[f"{name}.bias"].copy())})
            layers += [linear, nn.Tanh()]
        return nn.Sequential(*layers[:-1])

    def distribution(self, observation: Tensor) -> Any:
        if self.continuous:
            normal = torch.distributions.Normal(self.actor(observation), self.log_std.exp())
            return torch.distributions.Independent(normal, 1)
        return torch.distributions.Categorical(logits=self.actor(observation))

    def update(self, batch: Batch, progress: float, update: int) -> dict[str, float]:
        settings, columns = self.settings, batch.columns
        if settings.anneal_learning_rate:
            self.optimizer.param_groups[0]["lr"] = (1.0 - progress) * 1e-2
        blocks, steps, envs = columns["reward"].shape
        rows: list[tuple[Any, ...]] = []  # observation, action, log_prob, value, advantage, return
        for step in range(steps):
            for block in range(blocks):
                for env in range(envs):
                    if columns["mask"][block, step, env]:
                        value, advantage = self.advantage(batch, block, step, env)
                        at = (block, step, env)
                        observation, action = columns["observation"][at], columns["action"][at]
                        log_prob = columns["log_prob"][at]
                        rows.append((observation, action, log_prob, value, advantage, value + advantage))
        parts = [torch.as_tensor(np.array(part)) for part in zip(*rows, strict=True)]
        obs, act, old_log_prob, old_value, advantages, returns = (
            part.float() if part.dtype == torch.float64 else part for part in parts
        )
        rng = generator(SEED, "ppo", update)
        figures: list[dict[str, float]] = []
        for _ in range(settings.epochs):
            # The learner numbers steps with the masked ones among them, so the same draws shuffle the same positions.
            for rows_of in np.array_split(rng.permutation(len(rows)), settings.minibatches):
                index = torch.as_tensor(rows_of)
                figures.append(
                    self.minibatch(
                        obs[index], act[index], old_log_prob[index], old_value[index], advantages[index], returns[index]
                    )
                )
            if settings.target_kl is not None and figures[-1]["approx_kl"] > settings.target_kl:
                break
        variance = np.var(returns.numpy())
        explained = 1 - np.var((returns - old_value).numpy()) / variance
        means = {name: float(np.mean([figure[name] for figure in figures])) for name in figures[0]}
        return {**means, "explained_variance": float(explained), "num_epochs": len(figures) / settings.minibatches}

    def advantage(self, batch: Batch, block: int, step: int, env: int) -> tuple[float, float]:
        """Value and advantage by the definition: a sum forward in time until the episode or the block ends."""
        columns, settings = batch.columns, self.settings
        with torch.no_grad():
            values = self.critic(torch.as_tensor(columns["observation"][block, :, env]))[:, 0].double().numpy()
        total, weight = 0.0, 1.0
        for later in range(step, columns["reward"].shape[1]):
            terminated = columns["terminated"][block, later, env]
            bootstrap = 0.0 if terminated else settings.discount * values[later + 1]
            total += weight * (columns["reward"][block, later, env] + bootstrap - values[later])
            weight *= settings.discount * settings.lambda_
            if terminated or columns["truncated"][block, later, env]:
                break
        return values[step], total

    def minibatch(
        self, obs: Tensor, act: Tensor, old_log_prob: Tensor, old_value: Tensor, advantages: Tensor, returns: Tensor
    ) -> dict[str, float]:
        settings, clip = self.settings, self.settings.clip
        assert isinstance(clip, float)
        distribution = self.distribution(obs)
        log_ratio = distribution.log_prob(act) - old_log_prob
        ratio = log_ratio.exp()
        if settings.normalise_advantages:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy_loss = torch.max(-advantages * ratio, -advantages * torch.clamp(ratio, 1 - clip, 1 + clip)).mean()
        value = self.critic(obs).view(-1)
        value_loss = 0.5 * ((value - returns) ** 2).mean()
        if settings.value_clip is not None:
            clipped = old_value + torch.clamp(value - old_value, -settings.value_clip, settings.value_clip)
            value_loss = 0.5 * torch.max((value - returns) ** 2, (clipped - returns) ** 2).mean()
        entropy = distribution.entropy().mean()
        loss = policy_loss - settings.entropy_cost * entropy + settings.baseline_cost * value_loss
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, settings.max_grad_norm or float("inf"))
        self.optimizer.step()
        return {
            "loss": loss.item(),
            "policy_loss": policy_loss.item(),
            "value_loss": value_loss.item(),
            "entropy": entropy.item(),
            "approx_kl": ((ratio - 1) - log_ratio).mean().item(),
            "clip_fraction": ((ratio - 1).abs() > clip).float().mean().item(),
            "gradient_norm": norm.item(),
        }

    def weights(self) -> dict[str, np.ndarray[Any, Any]]:
        names = [f"{torso}.body.{at}" for torso in ("torso", "value_torso") for at in (0, 2)]
        layers = [self.actor[0], self.actor[2], self.critic[0], self.critic[2]]
        named = dict(zip(names, layers, strict=True)) | {
            "policy.linear": self.actor[4],
            "value.linear": self.critic[4],
        }
        weights = {
            f"{name}.{part}": tensor.numpy()
            for name, layer in named.items()
            for part, tensor in layer.state_dict().items()
        }
        return weights | ({"policy.log_std": self.log_std.detach().numpy()} if self.continuous else {})


SETTINGS = PPO(optimizer=TorchAdam(1e-2, eps=1e-5), epochs=3, minibatches=4, separate_networks=True, max_grad_norm=0.5)


@pytest.mark.parametrize(
    ("settings", "spec"),
    [
        pytest.param(SETTINGS, DISCRETE, id="default"),
        pytest.param(SETTINGS, CONTINUOUS, id="continuous"),
        pytest.param(dataclasses.replace(SETTINGS, value_clip=0.1, clip=0.1), DISCRETE, id="value_clip"),
        pytest.param(
            dataclasses.replace(SETTINGS, normalise_advantages=False, max_grad_norm=None), DISCRETE, id="plain"
        ),
        pytest.param(dataclasses.replace(SETTINGS, target_kl=0.05), DISCRETE, id="target_kl"),
        pytest.param(dataclasses.replace(SETTINGS, anneal_learning_rate=False, entropy_cost=0.1), DISCRETE, id="lr"),
    ],
)
def test_weights_and_metrics_are_those_of_a_reference_after_several_updates(settings: PPO, spec: Any) -> None:
    learner = settings.make_learner(spec, MLP((8, 8)), seed=SEED)
    reference = ReferencePPO(learner.variables(), settings)
    for update in range(3):
        batch = random_batch(spec, update, steps=8)
        metrics = dict(learner.update(batch, 0.25 * update).metrics)
        expected = reference.update(batch, 0.25 * update, update)
        assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=2e-4, abs=2e-5)
    weights = learner.variables()
    for name, array in reference.weights().items():
        assert_close(weights[name], array, what=name)
    assert set(reference.weights()) == set(weights)


def test_the_clip_follows_a_schedule() -> None:
    """As in Stable-Baselines3, whose tuned settings for CartPole say `clip_range: lin_0.2`."""
    learner = dataclasses.replace(SETTINGS, clip=LinearSchedule(0.2, 0.0)).make_learner(
        DISCRETE, MLP((8, 8)), seed=SEED
    )
    reference = ReferencePPO(learner.variables(), SETTINGS)
    for update in range(3):
        progress = 0.25 * update
        reference.settings = dataclasses.replace(SETTINGS, clip=0.2 * (1 - progress))
        batch = random_batch(DISCRETE, update, steps=8)
        metrics = dict(learner.update(batch, progress).metrics)
        expected = reference.update(batch, progress, update)
        assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=2e-4, abs=2e-5)
    with pytest.raises(ValueError, match=r"clip=LinearSchedule\(start=0, .* has to be above 0"):
        dataclasses.replace(SETTINGS, clip=LinearSchedule(0, 0.2))


class ReferenceRecurrentPPO:
    """PPO with an LSTM as CleanRL's ppo_atari_lstm.py has it: single steps, memory multiplied by 1 - first."""

    def __init__(self, weights: dict[str, Any], settings: PPO, units: int) -> None:
        self.settings = settings
        self.inner = self._linear(weights, "torso.inner.body.0")
        self.lstm = nn.LSTM(self.inner.out_features, units)
        start = "torso.memory."
        self.lstm.load_state_dict({n[len(start) :]: torch.tensor(a) for n, a in weights.items() if n.startswith(start)})
        self.actor, self.critic = self._linear(weights, "policy.linear"), self._linear(weights, "value.linear")
        self.modules = {"torso.inner.body.0": self.inner, "torso.memory": self.lstm} | {
            "policy.linear": self.actor,
            "value.linear": self.critic,
        }
        self.parameters = [p for module in self.modules.values() for p in module.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr=1e-2, eps=1e-5)

    @staticmethod
    def _linear(weights: dict[str, Any], name: str) -> nn.Linear:
        weight = torch.tensor(weights[f"{name}.weight"])
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        linear.load_state_dict({"weight": weight, "bias": torch.tensor(weights[f"{name}.bias"])})
        return linear

    def states(self, obs: Tensor, first: Tensor, hidden: Tensor, cell: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        state = (hidden.unsqueeze(0), cell.unsqueeze(0))
        for x, d in zip(obs, first.float(), strict=True):
            kept = (1.0 - d).view(1, -1, 1)
            output, state = self.lstm(torch.tanh(self.inner(x)).unsqueeze(0), (kept * state[0], kept * state[1]))
            outputs.append(output[0])
        return torch.stack(outputs)

    def update(self, batch: Batch, update: int) -> None:
        settings, clip = self.settings, self.settings.clip
        assert isinstance(clip, float)

        def joined(name: str) -> Tensor:  # [T, B * N, ...], environments of block 0 first
            return torch.cat([torch.tensor(block) for block in batch.columns[name]], dim=1)

        obs, first, act, reward = joined("observation"), joined("first"), joined("action"), joined("reward")
        terminated, truncated, mask = joined("terminated"), joined("truncated"), joined("mask")
        hidden, cell = (torch.tensor(np.concatenate(list(batch.columns[f"state.{n}"]))) for n in ("hidden", "cell"))
        old_log_prob = joined("log_prob")
        with torch.no_grad():
            values = self.critic(self.states(obs, first, hidden, cell))[..., 0]
        advantages = torch.zeros_like(reward)
        for env in range(reward.shape[1]):
            last = 0.0
            for t in reversed(range(len(reward))):
                if not mask[t, env]:
                    continue
                if terminated[t, env] or truncated[t, env]:
                    last = 0.0
                bootstrap = 0.0 if terminated[t, env] else settings.discount * values[t + 1, env]
                delta = reward[t, env] + bootstrap - values[t, env]
                last = delta + settings.discount * settings.lambda_ * last
                advantages[t, env] = last
        returns = advantages + values[:-1]
        rng = generator(SEED, "ppo", update)
        for _ in range(settings.epochs):
            for envs in np.array_split(rng.permutation(reward.shape[1]), settings.minibatches):
                e = torch.as_tensor(envs)
                features = self.states(obs[:-1, e], first[:-1, e], hidden[e], cell[e])
                m = mask[:, e]
                distribution = torch.distributions.Categorical(logits=self.actor(features)[m])
                ratio = (distribution.log_prob(act[:, e][m]) - old_log_prob[:, e][m]).exp()
                a = advantages[:, e][m]
                a = (a - a.mean()) / (a.std() + 1e-8)
                policy_loss = torch.max(-a * ratio, -a * ratio.clamp(1 - clip, 1 + clip)).mean()
                value_loss = 0.5 * ((self.critic(features)[..., 0][m] - returns[:, e][m]) ** 2).mean()
                entropy = distribution.entropy().mean()
                loss = policy_loss - settings.entropy_cost * entropy + settings.baseline_cost * value_loss
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.parameters, settings.max_grad_norm or float("inf"))
                self.optimizer.step()


def test_a_network_with_memory_learns_as_in_a_reference_that_steps_through_time() -> None:
    settings = dataclasses.replace(
        SETTINGS, separate_networks=False, anneal_learning_rate=False, epochs=2, minibatches=3
    )
    learner = settings.make_learner(DISCRETE, LSTM(MLP((8,)), 5), seed=SEED)
    reference = ReferenceRecurrentPPO(learner.variables(), settings, 5)
    for update in range(3):
        batch = random_batch(DISCRETE, update, steps=8, state={"hidden": 5, "cell": 5})
        learner.update(batch, 0.0)
        reference.update(batch, update)
    weights = learner.variables()
    for module, layer in reference.modules.items():
        for part, tensor in layer.state_dict().items():
            assert_close(weights[f"{module}.{part}"], tensor.numpy())


def test_advantages_are_computed_again_before_each_epoch_if_asked_for() -> None:
    batch = random_batch(DISCRETE, 0)
    settings = PPO(optimizer=TorchAdam(1e-2), epochs=2)
    weights = [
        dataclasses.replace(settings, epochs=epochs, recompute_advantages=again)
        .make_learner(DISCRETE, None, seed=0)
        .update(batch, 0.0)
        .metrics["value_loss"]
        for epochs, again in ((1, False), (1, True), (2, False), (2, True))
    ]
    assert weights[0] == weights[1]
    assert weights[2] != weights[3]


def test_no_epoch_begins_after_the_policy_moved_by_target_kl() -> None:
    settings = PPO(optimizer=TorchAdam(1e-2), epochs=8)
    batch = random_batch(DISCRETE, 0)
    moved = settings.make_learner(DISCRETE, None, seed=0).update(batch, 0.0).metrics
    stopped = dataclasses.replace(settings, target_kl=1e-9).make_learner(DISCRETE, None, seed=0).update(batch, 0.0)
    assert (moved["num_epochs"], stopped.metrics["num_epochs"]) == (8.0, 1.0)


# --- scores -----------------------------------------------------------------------------------------------------------


class Pays(gymnasium.Env[Any, Any]):
    """Shows which of four actions is worth 100; the others are worth nothing. Ten steps are an episode."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, seed: int) -> None:
        del seed
        self._best = self._num_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._num_steps = 0
        return self._shown(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = 100.0 * (int(action) == self._best)
        self._num_steps += 1
        return self._shown(), reward, self._num_steps == 10, False, {}

    def _shown(self) -> Any:
        self._best = int(self.np_random.integers(4))
        return 2 * np.eye(4, dtype=np.float32)[self._best] - 1


def test_returns_in_the_hundreds_are_learned_with_the_default_networks() -> None:
    """The error of such values dominates a network that is shared: 909, 923, 897 and 328, 332, 325 with three seeds."""
    agent = PPO(unroll=32, optimizer=TorchAdam(3e-3, eps=1e-5))
    score = [
        np.mean(train(each, Pays, MLP((32,)), steps=6_000).scores[-100:])
        for each in (agent, dataclasses.replace(agent, separate_networks=False))
    ]
    assert score[0] > 800 and score[1] < 600


RECALL = RecallTask(blanks=8)
RECALLING = PPO(unroll=40, envs=16, optimizer=TorchAdam(3e-3, eps=1e-5), anneal_learning_rate=False)


@pytest.mark.soak
def test_a_network_with_memory_learns_to_recall_the_cue() -> None:
    trained = train(RECALLING, RECALL, LSTM(MLP((32,)), 32), steps=60_000, enough=reaches(1.0))
    assert score_of(trained, RECALL, 200) >= 0.95


@pytest.mark.soak
def test_a_network_without_memory_does_not() -> None:
    assert score_of(train(RECALLING, RECALL, steps=20_000), RECALL, 200) <= 0.6
