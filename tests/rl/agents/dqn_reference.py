"""DQN in the style of CleanRL's single files: plain torch, with loops where the library has vector operations."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from torch import Tensor, nn

from ropewalk.rl.agents.dqn import DQN
from ropewalk.rl.replay.batch import Batch


class PlainNetwork(nn.Module):
    """Two layers and a head, perhaps with two streams."""

    def __init__(self, *, size: int, units: int, actions: int, atoms: int, dueling: bool) -> None:
        super().__init__()
        self.actions, self.atoms = actions, atoms
        self.hidden = nn.Linear(size, units)
        self.advantage = nn.Linear(units, actions * atoms)
        self.value = nn.Linear(units, atoms) if dueling else None

    def forward(self, observation: Tensor) -> Tensor:
        """Return outputs [B, A, Z]."""
        features = torch.relu(self.hidden(observation))
        outputs = self.advantage(features).reshape(-1, self.actions, self.atoms)
        if self.value is not None:
            value = self.value(features).reshape(-1, 1, self.atoms)
            outputs = value + outputs - outputs.sum(1, keepdim=True) / self.actions
        return outputs


class PlainDQN:
    """Updates of a network, item by item; `update` returns the loss and the priorities."""

    def __init__(
        self, network: PlainNetwork, settings: DQN, *, learning_rate: float, eps: float, target_period: int
    ) -> None:
        self.network, self.target = network, copy.deepcopy(network)
        self.settings, self.target_period = settings, target_period
        self.optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate, eps=eps)
        self.updates = 0

    def update(self, batch: Batch, progress: float) -> tuple[float, list[float]]:
        weights = self._weights(batch, progress)
        columns = {name: torch.tensor(array) for name, array in batch.columns.items()}
        losses: list[Tensor] = []
        priorities: list[float] = []
        for item in range(len(batch)):
            one = {name: column[item] for name, column in columns.items()}
            outputs = self.network(one["observation"][None])[0, one["action"]]
            with torch.no_grad():
                following = self.target(one["next_observation"][None])[0]
                online = self.network(one["next_observation"][None])[0]
                values = [self._mean(row) for row in (online if self.settings.double else following)]
                bootstrap = following[values.index(max(values))]
            loss, priority = self._item(outputs, bootstrap, one["reward"].item(), one["discount"].item())
            losses.append(loss * weights[item])
            priorities.append(priority)
        total = torch.stack(losses).sum() / len(losses)
        self.optimizer.zero_grad()
        total.backward()
        if self.settings.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.max_grad_norm)
        self.optimizer.step()
        self.updates += 1
        if self.updates % self.target_period == 0:
            self.target.load_state_dict(self.network.state_dict())
        return total.item(), priorities

    def _weights(self, batch: Batch, progress: float) -> list[float]:
        if not self.settings.prioritized:
            return [1.0] * len(batch)
        beta = self.settings.beta.start + progress * (self.settings.beta.end - self.settings.beta.start)
        raw = [(batch.info.table_size * p) ** -beta for p in batch.info.probability.tolist()]
        return [weight / max(raw) for weight in raw]

    def _mean(self, row: Tensor) -> float:
        if self.settings.distributional == "c51":
            low, high = self.settings.return_bounds
            atoms = np.linspace(low, high, self.settings.atoms)
            return sum(p * z for p, z in zip(torch.softmax(row, -1).tolist(), atoms, strict=True))
        return row.mean().item()

    def _item(self, outputs: Tensor, bootstrap: Tensor, reward: float, discount: float) -> tuple[Tensor, float]:
        match self.settings.distributional:
            case "none":
                error = reward + discount * bootstrap[0] - outputs[0]
                return _huber(error, self.settings.huber), abs(error.item())
            case "c51":
                return self._categorical(outputs, bootstrap, reward, discount)
            case "quantile":
                loss = self._quantiles(outputs, reward + discount * bootstrap)
                return loss, loss.item()

    def _categorical(self, outputs: Tensor, bootstrap: Tensor, reward: float, discount: float) -> tuple[Tensor, float]:
        """Algorithm 1 of Bellemare et al. 2017."""
        (low, high), num = self.settings.return_bounds, self.settings.atoms
        distance = (high - low) / (num - 1)
        masses = [0.0] * num
        for j, mass in enumerate(torch.softmax(bootstrap.double(), -1).tolist()):
            moved = min(high, max(low, reward + discount * (low + j * distance)))
            place = (moved - low) / distance
            lower, upper = math.floor(place), math.ceil(place)
            if lower == upper:
                masses[lower] += mass
            else:
                masses[lower] += mass * (upper - place)
                masses[upper] += mass * (place - lower)
        logs = torch.log_softmax(outputs, -1)
        loss = torch.stack([-mass * log for mass, log in zip(masses, logs, strict=True)]).sum()
        entropy = -sum(mass * math.log(mass) for mass in masses if mass > 0)
        return loss, loss.item() - entropy

    def _quantiles(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Equation 10 of Dabney et al. 2018."""
        num, loss = len(outputs), torch.zeros(())
        kappa = self.settings.huber or 0.0
        for i in range(num):
            level = (i + 0.5) / num
            for j in range(num):
                error = targets[j] - outputs[i]
                size = error.abs() if kappa == 0 else _huber(error, kappa) / kappa
                loss = loss + abs(level - float(error.item() < 0)) * size / num
        return loss


def _huber(error: Tensor, delta: float | None) -> Tensor:
    if delta is None or abs(error.item()) <= delta:
        return 0.5 * error**2
    return delta * (error.abs() - 0.5 * delta)
