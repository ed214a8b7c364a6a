"""`ServerSGD`: the update of a parameter server that owns the weights. Pure: it makes new tensors and changes none.

mean   theta <- theta - lr * sum / samples           as the usual optimizers do
sum    theta <- theta - lr * sum                     GD-SEC's paper: alpha = lr, f = sum_m f_m
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ropewalk.errors import ExchangeInvalid


@dataclass(frozen=True)
class ServerSGD:
    """Stochastic gradient descent at the server; the momentum is PyTorch's.

    Args:
        lr: step size.
        momentum: fraction of the last step's direction that is kept.
        weight_decay: factor of the weights that are added to the gradient.
        reduction: whether the sum over members is divided by the sum of samples ("mean") or taken as it is ("sum").
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    reduction: Literal["mean", "sum"] = "mean"

    def __post_init__(self) -> None:
        if not self.lr > 0 or not 0 <= self.momentum < 1 or not self.weight_decay >= 0:
            raise ExchangeInvalid(
                f"ServerSGD needs lr > 0, 0 <= momentum < 1 and weight_decay >= 0, not lr={self.lr!r}, "
                f"momentum={self.momentum!r}, weight_decay={self.weight_decay!r}"
            )
        if self.reduction not in ("mean", "sum"):
            raise ExchangeInvalid(f'ServerSGD takes reduction="mean" or "sum", not {self.reduction!r}')

    def step(
        self, weights: Tensor, velocity: Tensor | None, total: Tensor, samples: float
    ) -> tuple[Tensor, Tensor | None]:
        """Return the next weights and velocity.

        Args:
            weights: flat.
            velocity: flat, of the last step; None before the first one.
            total: flat sum over members, weighted by samples.
            samples: the sum of weights; if it is 0, weights and velocity stay.

        Returns:
            New weights and velocity, flat.
        """
        if not samples > 0:
            return weights, velocity
        direction = total / samples if self.reduction == "mean" else total
        if self.weight_decay:
            direction = direction + self.weight_decay * weights
        if self.momentum:
            velocity = direction.clone() if velocity is None else self.momentum * velocity + direction
            direction = velocity
        # Not `torch.sub(..., alpha=lr)`: that may fuse the product, and differs in the last bit from plain arithmetic.
        return weights - self.lr * direction, velocity

    def applied(self, moved: Tensor, samples: float) -> Tensor:
        """Return the sum over members that plain SGD would have applied to move the weights by `moved`."""
        return moved * (-(samples if self.reduction == "mean" else 1.0) / self.lr)
