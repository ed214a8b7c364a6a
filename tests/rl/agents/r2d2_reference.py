"""R2D2 as loops over sequences and steps: one step of the LSTM at a time, targets as numbers of Python."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from ropewalk.rl.agents.r2d2 import R2D2
from ropewalk.rl.replay.batch import Batch


class PlainRecurrent(nn.Module):
    """A layer, a memory, and a linear head."""

    def __init__(self, *, size: int, units: int, memory: int, actions: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(size, units)
        self.memory = nn.LSTMCell(units, memory)
        self.values = nn.Linear(memory, actions)

    def forward(
        self, observation: Tensor, state: tuple[Tensor, Tensor], *, first: bool
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return values [A] and the state after one step of one environment."""
        if first:
            state = (torch.zeros_like(state[0]), torch.zeros_like(state[1]))
        state = self.memory(torch.relu(self.hidden(observation)), state)
        return self.values(state[0]), state


class PlainR2D2:
    """Updates of a network, sequence by sequence; `update` returns the loss and the priorities."""

    def __init__(
        self, network: PlainRecurrent, settings: R2D2, *, learning_rate: float, eps: float, target_period: int
    ) -> None:
        self.network, self.target = network, copy.deepcopy(network)
        self.settings, self.target_period = settings, target_period
        self.optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate, eps=eps)
        self.updates = 0

    def update(self, batch: Batch) -> tuple[float, list[float]]:
        raw = [(batch.info.table_size * p) ** -self.settings.beta.start for p in batch.info.probability.tolist()]
        total, priorities = torch.zeros(()), []
        for item in range(len(batch)):
            loss, priority = self._sequence({name: torch.tensor(array[item]) for name, array in batch.columns.items()})
            total = total + loss * raw[item] / max(raw) / len(batch)
            priorities.append(priority)
        self.optimizer.zero_grad()
        total.backward()
        assert self.settings.max_grad_norm is not None
        nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.max_grad_norm)
        self.optimizer.step()
        self.updates += 1
        if self.updates % self.target_period == 0:
            self.target.load_state_dict(self.network.state_dict())
        return total.item(), priorities

    def _sequence(self, columns: dict[str, Tensor]) -> tuple[Tensor, float]:
        online = self._values(self.network, columns)
        with torch.no_grad():
            target = self._values(self.target, columns)
        best = [int(row.argmax()) for row in online]
        bootstrap = [_unscaled(row[action].item()) for row, action in zip(target, best, strict=True)]
        loss, sizes = torch.zeros(()), []
        for step in range(self.settings.burn_in, len(online) - 1):
            if columns["mask"][step]:
                wanted = _scaled(self._return(columns, bootstrap, step))
                error = wanted - online[step][columns["action"][step]]
                loss = loss + 0.5 * error**2
                sizes.append(abs(error.item()))
        if not sizes:
            return loss, 0.0
        return loss, self.settings.eta * max(sizes) + (1 - self.settings.eta) * sum(sizes) / len(sizes)

    def _values(self, network: PlainRecurrent, columns: dict[str, Tensor]) -> list[Tensor]:
        state, values = (columns["state.hidden"], columns["state.cell"]), []
        for step, observation in enumerate(columns["observation"]):
            if step == self.settings.burn_in:
                state = (state[0].detach(), state[1].detach())
            row, state = network(observation, state, first=bool(columns["first"][step]))
            values.append(row)
        return values

    def _return(self, columns: dict[str, Tensor], bootstrap: list[float], start: int) -> float:
        total, factor = 0.0, 1.0
        for step in range(start, start + self.settings.n_step):
            if step == len(bootstrap) - 1:  # nothing is known of what follows the last row
                return total + factor * bootstrap[step]
            total += factor * columns["reward"][step].item()
            if columns["terminated"][step]:
                return total
            factor *= self.settings.discount
            if columns["truncated"][step]:  # the next row shows the last observation of the episode
                return total + factor * bootstrap[step + 1]
        return total + factor * bootstrap[start + self.settings.n_step]


def _scaled(x: float) -> float:
    return math.copysign(1, x) * (math.sqrt(abs(x) + 1) - 1) + 1e-3 * x


def _unscaled(x: float) -> float:
    root = (math.sqrt(1 + 4e-3 * (abs(x) + 1 + 1e-3)) - 1) / 2e-3
    return math.copysign(1, x) * (root**2 - 1)
