"""What a network of action values says about the return of an action: its mean, or its distribution.

    ScalarReturn        one number, the mean (Mnih 2015)
    CategoricalReturn   probabilities of fixed returns, "atoms" (C51: Bellemare et al. 2017)
    QuantileReturn      returns of fixed probabilities, "quantiles" (QR-DQN: Dabney et al. 2018)

The network has `size` outputs per action, as an axis of their own if there are several; `mean` turns outputs [..., A]
or [..., A, size] into values [..., A].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ScalarReturn:
    """The mean alone."""

    @property
    def size(self) -> int:
        """Outputs per action."""
        return 1

    def mean(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the values of the actions, shape [..., A]."""
        return outputs

    def mean_numpy(self, outputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the same as `mean`, for arrays."""
        return outputs


@dataclass(frozen=True, slots=True)
class CategoricalReturn:
    """Logits of `atoms` returns, which are spread evenly from `low` to `high`.

    Args:
        low: the least return; lower ones count as this one.
        high: the largest return; higher ones count as this one.
        atoms: number of returns, at least 2.
    """

    low: float = -10.0
    high: float = 10.0
    atoms: int = 51

    def __post_init__(self) -> None:
        """Refuse a support that is empty."""
        if self.atoms < 2 or not self.low < self.high:
            raise ValueError(
                f"CategoricalReturn: low={self.low}, high={self.high}, atoms={self.atoms}; low must be below high, "
                "with at least 2 atoms: choose bounds that all discounted returns lie in"
            )

    @property
    def size(self) -> int:
        """Outputs per action."""
        return self.atoms

    def support(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return the returns that the atoms stand for, float32, shape (atoms,)."""
        return torch.linspace(self.low, self.high, self.atoms, device=device)

    def mean(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the values of the actions, shape [..., A]."""
        return torch.softmax(outputs, -1) @ self.support(outputs.device)

    def mean_numpy(self, outputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the same as `mean`, for arrays."""
        weights = np.exp(outputs - outputs.max(-1, keepdims=True))
        support = np.linspace(self.low, self.high, self.atoms, dtype=np.float32)
        return (weights @ support) / weights.sum(-1)


@dataclass(frozen=True, slots=True)
class QuantileReturn:
    """Quantiles of the return at the probabilities (i + 1/2) / num.

    Args:
        num: number of quantiles; 200 in the paper.
    """

    num: int = 200

    @property
    def size(self) -> int:
        """Outputs per action."""
        return self.num

    def mean(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the values of the actions, shape [..., A]."""
        return outputs.mean(-1)

    def mean_numpy(self, outputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the same as `mean`, for arrays."""
        return outputs.mean(-1)


ReturnKind: TypeAlias = ScalarReturn | CategoricalReturn | QuantileReturn

__all__ = ["CategoricalReturn", "QuantileReturn", "ReturnKind", "ScalarReturn"]
