from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.rl.agents.sac import SAC, SACLearner
from ropewalk.rl.learners.optimizers import TorchAdam
from ropewalk.rl.networks.critics import StackedLinear
from ropewalk.rl.networks.mlp import MLP
from tests.rl.agents.transition_batches import SPEC, random_batch

NETWORK = MLP((16, 16), activation="relu")
HALF, CENTRE = torch.tensor([2.0, 0.5]), torch.tensor([0.0, 0.5])
"""Of the bounds of `SPEC`."""


def perceptron(layers: list[tuple[Tensor, Tensor]]) -> nn.Sequential:
    """A plain perceptron with ReLU, of given weights (out, in) and biases."""
    modules: list[nn.Module] = []
    for weight, bias in layers:
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        with torch.no_grad():
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def single_critic(stacked: nn.Module, index: int) -> nn.Sequential:
    layers = [layer for layer in stacked.modules() if isinstance(layer, StackedLinear)]
    return perceptron([(layer.weight[index].detach().T, layer.bias[index, 0].detach()) for layer in layers])


def single_actor(actor: nn.Module) -> nn.Sequential:
    layers = [layer for layer in actor.modules() if isinstance(layer, nn.Linear)]
    return perceptron([(layer.weight.detach(), layer.bias.detach()) for layer in layers])


def flat(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


class PlainSAC:
    """Soft actor-critic in the manner of CleanRL: plain torch, one file, nothing of Ropewalk."""

    def __init__(self, actor: nn.Module, critics: list[nn.Module], rate: float, noise: torch.Generator) -> None:
        self.actor, self.critics, self.noise = actor, critics, noise
        self.targets = copy.deepcopy(critics)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.q_optimizer = torch.optim.Adam([p for critic in critics for p in critic.parameters()], rate)
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), rate)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], rate)

    def act(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(observation).chunk(2, dim=-1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        raw = mean + normal.stddev * torch.randn(mean.shape, generator=self.noise)
        squashed = torch.tanh(raw)
        log_prob = normal.log_prob(raw) - torch.log1p(-squashed.double().square()).float()
        return squashed, log_prob.sum(-1)

    def update(self, batch: dict[str, Tensor]) -> dict[str, float]:
        alpha = self.log_alpha.exp().item()
        with torch.no_grad():
            action, log_prob = self.act(batch["next_observation"])
            joined = torch.cat([batch["next_observation"], action], 1)
            lowest = torch.min(*[target(joined).view(-1) for target in self.targets])
            y = batch["reward"] + batch["discount"] * (lowest - alpha * log_prob)
        joined = torch.cat([batch["observation"], batch["action"]], 1)
        q_loss = sum(
            (0.5 * functional.mse_loss(critic(joined).view(-1), y) for critic in self.critics), torch.zeros(())
        )
        self.q_optimizer.zero_grad()
        q_loss.backward()
        self.q_optimizer.step()

        action, log_prob = self.act(batch["observation"])
        joined = torch.cat([batch["observation"], action], 1)
        lowest = torch.min(*[critic(joined).view(-1) for critic in self.critics])
        actor_loss = (alpha * log_prob - lowest).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()

        alpha_loss = (-self.log_alpha.exp() * (log_prob.detach() - action.shape[1])).mean()
        self.alpha_optimizer.zero_grad()
        alpha_loss.backward()
        self.alpha_optimizer.step()
        with torch.no_grad():
            for critic, target in zip(self.critics, self.targets, strict=True):
                for theirs, mine in zip(critic.parameters(), target.parameters(), strict=True):
                    mine.copy_(0.005 * theirs + 0.995 * mine)
        return {"critic_loss": q_loss.item(), "policy_loss": actor_loss.item(), "temperature": alpha}


def tensors(columns: Any) -> dict[str, Tensor]:
    """The columns of a batch, with canonical actions."""
    batch = {name: torch.tensor(array) for name, array in columns.items()}
    return batch | {"action": (batch["action"] - CENTRE) / HALF}


def test_losses_and_weights_are_those_of_a_plain_implementation() -> None:
    learner = SAC(optimizer=TorchAdam(1e-2)).make_learner(SPEC, NETWORK, seed=3)
    noise = torch.Generator()
    noise.set_state(learner.state_dict()["generator"])
    critics: list[nn.Module] = [single_critic(learner.critics, index) for index in range(2)]
    plain = PlainSAC(single_actor(learner.actor), critics, 1e-2, noise)
    for number in range(20):
        batch = random_batch(seed=number)
        ours, theirs = learner.update(batch, 0.0).metrics, plain.update(tensors(batch.columns))
        assert {name: ours[name] for name in theirs} == pytest.approx(theirs, rel=2e-4, abs=2e-5), number
    torch.testing.assert_close(flat(single_actor(learner.actor)), flat(plain.actor), rtol=1e-3, atol=1e-4)
    for index in range(2):
        torch.testing.assert_close(
            flat(single_critic(learner.critics, index)), flat(plain.critics[index]), rtol=1e-3, atol=1e-4
        )
        torch.testing.assert_close(
            flat(single_critic(learner.target_critics, index)), flat(plain.targets[index]), rtol=1e-3, atol=1e-4
        )


def test_the_temperature_falls_while_the_entropy_is_above_its_target_and_rises_below() -> None:
    def temperatures(target_entropy: float) -> list[float]:
        learner = SAC(optimizer=TorchAdam(1e-2), target_entropy=target_entropy).make_learner(SPEC, NETWORK, seed=0)
        return [learner.update(random_batch(seed=number), 0.0).metrics["temperature"] for number in range(5)]

    assert np.all(np.diff(temperatures(-50.0)) < 0)
    assert np.all(np.diff(temperatures(50.0)) > 0)


def test_a_temperature_that_is_given_stays_as_it_is() -> None:
    learner = SAC(temperature=0.2).make_learner(SPEC, NETWORK, seed=0)
    for number in range(3):
        assert learner.update(random_batch(seed=number), 0.0).metrics["temperature"] == pytest.approx(0.2)


@pytest.mark.parametrize("name", ["temperature", "initial_temperature"])
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_temperature_that_has_no_logarithm_is_refused(name: str, value: float) -> None:
    settings: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"{name}={value} must be positive"):
        SAC(**settings)


def test_the_default_target_entropy_is_minus_the_number_of_entries() -> None:
    def weights(settings: SAC) -> dict[str, Any]:
        learner = SACLearner(settings, SPEC, NETWORK, seed=0)
        learner.update(random_batch(), 0.0)
        return learner.state_dict()["modules"]["temperature"]

    assert weights(SAC()) == weights(SAC(target_entropy=-2.0)) != weights(SAC(target_entropy=20.0))
