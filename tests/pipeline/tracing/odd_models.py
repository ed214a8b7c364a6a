"""Small models, each with something that makes a graph hard to see or to cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Odd(NamedTuple):
    """A model, and a function that makes inputs for a batch size."""

    model: nn.Module
    inputs: Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]


class Returned(NamedTuple):
    logits: Tensor
    hidden: list[Tensor]


class InPlace(nn.Module):
    """Writes in place: activations, sums, its own input, counters of steps, an average that is assigned."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.4, inplace=True)
        self.second = nn.Linear(6, 3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(0.5)
        self.steps += 1
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        y = self.norm(self.first(x))
        half = y[:, :3]
        half.sigmoid_()
        y = F.relu((y + self.average) * 2, inplace=True) * 3
        y.add_(x)
        return self.second(self.dropout(y * 2))


class Kwargs(nn.Module):
    """Masks, a flag, an option that is None, a dictionary of inputs; a named tuple of outputs with constants."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Linear(4, 8)
        self.attend = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(
        self, batch: Mapping[str, Tensor], mask: Tensor | None = None, *, scale: float = 1.0, deep: bool = False
    ) -> dict[str, Any]:
        hidden = [self.read(batch["x"])]
        causal = torch.triu(torch.ones(batch["x"].size(1), batch["x"].size(1), dtype=torch.bool), 1)
        steps = 2 if deep else 1
        for _ in range(steps):
            attended, _ = self.attend(hidden[-1], hidden[-1], hidden[-1], key_padding_mask=mask, attn_mask=causal)
            hidden.append(hidden[-1] + attended * scale)
        logits = self.head(hidden[-1]) + batch["bias"][:, None]
        return {"out": Returned(logits, hidden[1:]), "rows": torch.arange(logits.size(0)), "deep": deep, "none": None}


class Shared(nn.Module):
    """One module called twice, and an embedding whose weight is the head's too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6, padding_idx=0)
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.2))
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) * self.scale
        for _ in range(2):
            x = self.norm(self.block(x))
        return self.head(x)


class Recurrent(nn.Module):
    """An LSTM that starts from zeros of the batch's size, and a GRU of two layers behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.gru = nn.GRU(5, 3, num_layers=2, dropout=0.3, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        start = torch.zeros(1, x.shape[0], 5)
        y, (_, cell) = self.lstm(x, (start, start))
        z, last = self.gru(y)
        return z[:, -1] + last[-1], cell


class Shapes(nn.Module):
    """Reshapes by the size of the batch, splits, draws noise, and computes a part without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 6, 3, padding="same")
        self.mix = nn.Linear(12, 12)
        self.bound = torch.tensor([0.5, 1.5, 2.5])  # no buffer: a constant of the graph

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, length = x.shape
        y = self.conv(x.reshape(batch, channels, length)).view(batch, -1)
        a, b = self.mix(y.view(batch * length // 2, 12)).chunk(2, dim=-1)
        with torch.no_grad():
            weights = torch.softmax(b, -1) * batch
        noise = torch.randn(batch * length // 2, 6)
        rows = torch.arange(batch * length // 2)[:, None] % 3
        return (a * weights + noise).reshape(batch, -1).flip(0) + self.bound[rows].expand(-1, 6).reshape(batch, -1)


class RandomOrder(nn.Module):
    """Draws twice, and writes to what was drawn first when the second is there."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        first = F.dropout(self.linear(x), 0.5)
        second = F.dropout(x, 0.3)
        return first.add_(second) * 2


class ThreeReaders(nn.Module):
    """A value with three readers, whose gradients are added in the order of the program."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.linear(x)
        viewed = hidden.view(-1, 3, 2)
        first = torch.sin(hidden * 1.3)
        second = torch.exp(viewed).flatten(1)
        return first * second * torch.tanh(hidden * 0.7)


class Block(nn.Module):
    """For an `nn.Sequential`: a module under two names, a recurrent layer, statistics, a buffer that is assigned."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.again = self.first
        self.norm = nn.BatchNorm1d(6)
        self.lstm = nn.LSTM(6, 6)
        self.absent = None
        self.register_buffer("average", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.average = self.average * 0.9 + x.mean(0)
        if x.sum() > 1e9:  # a tracer could not see this
            return x
        return self.lstm(self.norm(self.again(self.first(x))))[0] + self.average


class SharedNorm(nn.Module):
    """Two towers of one network: its statistics are written twice, in the order of the program."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.norm(self.linear(left)) - self.norm(self.linear(right))


def _images(batch: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(batch, 6),), {}


def _keywords(batch: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    mask = torch.zeros(batch, 5, dtype=torch.bool)
    mask[:, -1] = True
    inputs = {"x": torch.randn(batch, 5, 4), "bias": torch.randn(batch, 3)}
    return (), {"batch": inputs, "mask": mask, "scale": 0.5, "deep": True}


#: By name.
ODD_MODELS: dict[str, Callable[[], Odd]] = {
    "in_place": lambda: Odd(InPlace(), _images),
    "random_order": lambda: Odd(RandomOrder(), _images),
    "untraced_blocks": lambda: Odd(nn.Sequential(nn.Linear(6, 6), Block(), nn.Dropout(0.2), Block()), _images),
    "shared_norm": lambda: Odd(SharedNorm(), lambda batch: ((torch.randn(batch, 6), torch.randn(batch, 6)), {})),
    "kwargs": lambda: Odd(Kwargs(), _keywords),
    "shared": lambda: Odd(Shared(), lambda batch: ((torch.randint(11, (batch, 4)),), {})),
    "recurrent": lambda: Odd(Recurrent(), lambda batch: ((torch.randn(batch, 3, 4),), {})),
    "shapes": lambda: Odd(Shapes(), lambda batch: ((torch.randn(batch, 4, 8),), {})),
}
