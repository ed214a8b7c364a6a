from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.rl.agents.td3 import TD3
from ropewalk.rl.learners.optimizers import TorchAdam
from tests.rl.agents.test_sac import NETWORK, flat, single_actor, single_critic, tensors
from tests.rl.agents.transition_batches import SPEC, random_batch


class PlainTD3:
    """TD3 in the manner of CleanRL: plain torch, one file, nothing of Ropewalk."""

    def __init__(self, actor: nn.Module, critics: list[nn.Module], rate: float, noise: torch.Generator) -> None:
        self.actor, self.critics, self.noise = actor, critics, noise
        self.target_actor, self.targets = copy.deepcopy(actor), copy.deepcopy(critics)
        self.q_optimizer = torch.optim.Adam([p for critic in critics for p in critic.parameters()], rate)
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), rate)
        self.updates = 0

    def update(self, batch: dict[str, Tensor]) -> dict[str, float]:
        self.updates += 1
        with torch.no_grad():
            clipped = (0.2 * torch.randn(batch["action"].shape, generator=self.noise)).clamp(-0.5, 0.5)
            action = (torch.tanh(self.target_actor(batch["next_observation"])) + clipped).clamp(-1, 1)
            joined = torch.cat([batch["next_observation"], action], 1)
            lowest = torch.min(*[target(joined).view(-1) for target in self.targets])
            y = batch["reward"] + batch["discount"] * lowest
        joined = torch.cat([batch["observation"], batch["action"]], 1)
        q_loss = sum((functional.mse_loss(critic(joined).view(-1), y) for critic in self.critics), torch.zeros(()))
        self.q_optimizer.zero_grad()
        q_loss.backward()
        self.q_optimizer.step()
        metrics = {"critic_loss": q_loss.item()}
        if self.updates % 2 == 0:
            action = torch.tanh(self.actor(batch["observation"]))
            actor_loss = -self.critics[0](torch.cat([batch["observation"], action], 1)).mean()
            self.actor_optimizer.zero_grad()
            actor_loss.backward()
            self.actor_optimizer.step()
            metrics["policy_loss"] = actor_loss.item()
            with torch.no_grad():
                online = [self.actor, *self.critics]
                for network, target in zip(online, [self.target_actor, *self.targets], strict=True):
                    for theirs, mine in zip(network.parameters(), target.parameters(), strict=True):
                        mine.copy_(0.005 * theirs + 0.995 * mine)
        return metrics


def test_losses_and_weights_are_those_of_a_plain_implementation() -> None:
    learner = TD3(optimizer=TorchAdam(1e-2)).make_learner(SPEC, NETWORK, seed=3)
    noise = torch.Generator()
    noise.set_state(learner.state_dict()["generator"])
    critics: list[nn.Module] = [single_critic(learner.critics, index) for index in range(2)]
    plain = PlainTD3(single_actor(learner.actor), critics, 1e-2, noise)
    for number in range(20):
        batch = random_batch(seed=number)
        ours, theirs = learner.update(batch, 0.0).metrics, plain.update(tensors(batch.columns))
        assert {name: ours[name] for name in theirs} == pytest.approx(theirs, rel=2e-4, abs=2e-5), number
        assert ("policy_loss" in ours) == ("policy_loss" in theirs)
    torch.testing.assert_close(flat(single_actor(learner.actor)), flat(plain.actor), rtol=1e-3, atol=1e-4)
    target_actor = learner.modules()["target_actor"]
    torch.testing.assert_close(flat(single_actor(target_actor)), flat(plain.target_actor), rtol=1e-3, atol=1e-4)
    for index in range(2):
        torch.testing.assert_close(
            flat(single_critic(learner.critics, index)), flat(plain.critics[index]), rtol=1e-3, atol=1e-4
        )
        torch.testing.assert_close(
            flat(single_critic(learner.target_critics, index)), flat(plain.targets[index]), rtol=1e-3, atol=1e-4
        )


def test_the_policy_stays_as_it_is_between_delayed_updates() -> None:
    learner = TD3(policy_delay=3).make_learner(SPEC, NETWORK, seed=0)
    before = [flat(learner.actor)]
    for number in range(6):
        learner.update(random_batch(seed=number), 0.0)
        before.append(flat(learner.actor))
    changed = [not torch.equal(a, b) for a, b in itertools.pairwise(before)]
    assert changed == [False, False, True, False, False, True]


def test_a_delay_of_no_updates_is_refused() -> None:
    with pytest.raises(ValueError, match="policy_delay=0"):
        TD3(policy_delay=0)
