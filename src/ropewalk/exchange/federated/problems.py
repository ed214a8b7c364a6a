"""Convex problems whose data is distributed over workers: linear, logistic and softmax regression.

The sum convention of the GD-SEC paper: `f(theta) = sum_m f_m(theta)`, with

    f_m = 1/n sum over the rows i of worker m of loss(x_i theta, y_i)  +  ridge / (2 M) |theta|^2

so that f is the mean loss over all n rows, plus a ridge term. All workers are computed at once: rows are padded to the
largest shard, with weight 0. The optimum is found by Newton's method, to full precision.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, cast

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shards:
    """The rows of M workers, n rows in the largest shard.

    Attributes:
        features: (M, n, p), float64.
        targets: (M, n): numbers, signs, or classes.
        weights: (M, n): 1 over the number of all rows, and 0 for padding.
    """

    features: Tensor
    targets: Tensor
    weights: Tensor

    @property
    def num_rows(self) -> Tensor:
        """Number of rows of each worker, (M,)."""
        return (self.weights > 0).sum(1)

    def of(self, workers: Tensor) -> Shards:
        """Select the shards of some workers, by index."""
        return Shards(self.features[workers], self.targets[workers], self.weights[workers])

    def drawn(self, batch: int, made: torch.Generator | None) -> Shards:
        """Draw `batch` rows of each worker, with repetition; weights are scaled to represent all rows of the worker."""
        num_rows = self.num_rows[:, None]
        at = (torch.rand(len(num_rows), batch, generator=made, dtype=torch.float64) * num_rows).long()
        workers = torch.arange(len(num_rows))[:, None]
        weights = self.weights[workers, at] * num_rows / batch
        return Shards(self.features[workers, at], self.targets[workers, at], weights)


def shard(features: Tensor, targets: Tensor, num_workers: int, *, unlike: float = 0.0, seed: int = 0) -> Shards:
    """Distribute rows over workers, as evenly as possible.

    Args:
        features: (rows, p).
        targets: (rows,).
        num_workers: number of workers, at most the number of rows.
        unlike: heterogeneity of the workers, from 0 (rows in random order) to 1 (rows sorted by target, so that a
            worker has few different targets); in between, this fraction of the rows is sorted.
        seed: seed of the order.

    Returns:
        The shards.

    Raises:
        ValueError: fewer rows than workers, or `unlike` is not between 0 and 1.
    """
    num = len(features)
    if not 1 <= num_workers <= num:
        raise ValueError(f"{num} rows cannot be spread over {num_workers} workers; use 1 to {num}")
    if not 0 <= unlike <= 1:
        raise ValueError(f"workers are unlike by 0 to 1, not by {unlike}")
    order = torch.randperm(num, generator=torch.Generator().manual_seed(seed))
    chosen = order[: round(unlike * num)]
    order = torch.cat([chosen[targets[chosen].argsort(stable=True)], order[len(chosen) :]])
    # Worker m gets its share of the sorted rows and of the others.
    parts = [
        torch.cat(both)
        for both in zip(
            order[: len(chosen)].tensor_split(num_workers),
            reversed(order[len(chosen) :].tensor_split(num_workers)),
            strict=True,
        )
    ]
    longest = max(map(len, parts))
    places = torch.stack([torch.nn.functional.pad(part, (0, longest - len(part)), value=-1) for part in parts])
    there = places >= 0
    rows = features.to(torch.float64)[places.clamp_min(0)] * there[:, :, None]
    return Shards(rows, targets[places.clamp_min(0)], there.to(torch.float64) / num)


class Problem(abc.ABC):
    """A convex objective over shards.

    Attributes:
        shards: the data.
        ridge: factor of `|theta|^2 / 2` in f; makes f strongly convex.
        num_outputs: number of columns of theta, which is flat in all arguments: (p * num_outputs,).
    """

    steepest: ClassVar[float]
    """The largest eigenvalue that the second derivative of the loss of one row can have."""

    def __init__(self, shards: Shards, ridge: float = 0.0, num_outputs: int = 1) -> None:
        self.shards = shards
        self.ridge = ridge
        self.num_outputs = num_outputs
        self.num_workers: int = shards.features.shape[0]
        self.num_features: int = shards.features.shape[2]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.num_workers} workers, {self.num_weights} weights>"

    @property
    def num_weights(self) -> int:
        """Number of components of theta."""
        return self.num_features * self.num_outputs

    @abc.abstractmethod
    def losses(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each row: (..., outputs), (...) -> (...)."""

    @abc.abstractmethod
    def slopes(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return derivatives of the losses by scores: (..., outputs)."""

    @abc.abstractmethod
    def curvatures(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return second derivatives of the losses by scores: (..., outputs, outputs)."""

    def value(self, theta: Tensor) -> float:
        """Return f at theta, over all workers."""
        losses = self.losses(self._scores(self.shards.features, theta), self.shards.targets)
        return float((losses * self.shards.weights).sum() + self.ridge / 2 * torch.dot(theta, theta))

    def gradients(
        self,
        theta: Tensor,
        workers: Tensor | None = None,
        batch: int | None = None,
        made: torch.Generator | None = None,
    ) -> Tensor:
        """Return the gradient of each f_m: (workers, num_weights).

        Args:
            theta: flat, (num_weights,).
            workers: indices of the workers; None for all.
            batch: number of rows that each worker draws, with repetition, for an unbiased estimate; None for all of its
                rows.
            made: generator for the drawing.
        """
        data = self.shards if workers is None else self.shards.of(workers)
        data = data if batch is None else data.drawn(batch, made)
        slopes = self.slopes(self._scores(data.features, theta), data.targets) * data.weights[:, :, None]
        gradients = (data.features.transpose(1, 2) @ slopes).flatten(1)
        return gradients + self.ridge / self.num_workers * theta

    def hessian(self, theta: Tensor) -> Tensor:
        """Return the Hessian of f: (num_weights, num_weights)."""
        rows = self.shards.features.flatten(0, 1)
        bends = self.curvatures(self._scores(rows, theta), self.shards.targets.flatten())
        bends = bends * self.shards.weights.flatten()[:, None, None]
        size = self.num_weights
        blocks = torch.stack([rows.T @ (rows * bends[:, a, b, None]) for a, b in self._pairs])
        blocks = blocks.reshape(self.num_outputs, self.num_outputs, self.num_features, self.num_features)
        return blocks.permute(2, 0, 3, 1).reshape(size, size) + self.ridge * torch.eye(size, dtype=torch.float64)

    @cached_property
    def smoothness(self) -> float:
        """Return an upper bound of L, the Lipschitz constant of the gradient of f; exact for linear regression."""
        rows = (self.shards.features * self.shards.weights.sqrt()[:, :, None]).flatten(0, 1)
        largest = cast(Tensor, torch.linalg.eigvalsh(rows.T @ rows))[-1]  # pyright: ignore[reportUnknownMemberType]
        return self.steepest * float(largest) + self.ridge

    @cached_property
    def optimum(self) -> Tensor:
        """The theta that minimizes f, (num_weights,), found by Newton's method with halved steps."""
        theta = self.start()
        for _ in range(100):
            gradient = self.gradients(theta).sum(0)
            if float(gradient.abs().max()) < 1e-13:
                break
            step = cast(Tensor, torch.linalg.solve(self.hessian(theta), gradient))  # pyright: ignore[reportUnknownMemberType]
            value, share = self.value(theta), 1.0
            while self.value(theta - share * step) > value and share > 1e-6:
                share /= 2
            theta = theta - share * step
        return theta

    def start(self) -> Tensor:
        """Return the initial theta: zeros, (num_weights,), float64."""
        return torch.zeros(self.num_weights, dtype=torch.float64)

    @property
    def _pairs(self) -> list[tuple[int, int]]:
        return [(a, b) for a in range(self.num_outputs) for b in range(self.num_outputs)]

    def _scores(self, rows: Tensor, theta: Tensor) -> Tensor:
        return rows @ theta.view(self.num_features, self.num_outputs)


class LinearRegression(Problem):
    """Half the squared error; targets are numbers."""

    steepest: ClassVar[float] = 1.0

    def losses(self, scores: Tensor, targets: Tensor) -> Tensor:
        return (scores[..., 0] - targets).square() / 2

    def slopes(self, scores: Tensor, targets: Tensor) -> Tensor:
        return scores - targets[..., None]

    def curvatures(self, scores: Tensor, targets: Tensor) -> Tensor:
        return torch.ones_like(scores)[..., None]


class LogisticRegression(Problem):
    """`log(1 + exp(-y x theta))`; targets are -1 and 1."""

    steepest: ClassVar[float] = 0.25

    def losses(self, scores: Tensor, targets: Tensor) -> Tensor:
        return torch.nn.functional.softplus(-targets * scores[..., 0])

    def slopes(self, scores: Tensor, targets: Tensor) -> Tensor:
        return -(targets * torch.sigmoid(-targets * scores[..., 0]))[..., None]

    def curvatures(self, scores: Tensor, targets: Tensor) -> Tensor:
        chance = torch.sigmoid(scores)
        return (chance * (1 - chance))[..., None]


class SoftmaxRegression(Problem):
    """Cross-entropy over `num_outputs` classes; targets are classes, from 0."""

    steepest: ClassVar[float] = 0.5

    def losses(self, scores: Tensor, targets: Tensor) -> Tensor:
        return -scores.log_softmax(-1).gather(-1, targets[..., None])[..., 0]

    def slopes(self, scores: Tensor, targets: Tensor) -> Tensor:
        return scores.softmax(-1) - torch.nn.functional.one_hot(targets, self.num_outputs)

    def curvatures(self, scores: Tensor, targets: Tensor) -> Tensor:
        chances = scores.softmax(-1)
        return torch.diag_embed(chances) - chances[..., :, None] * chances[..., None, :]
