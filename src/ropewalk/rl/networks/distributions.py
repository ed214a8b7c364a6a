"""Distributions of actions: what the numbers at the end of a policy network mean.

                    parameters of one action                       action
Categorical         num logits                                     int64 ()
MultiCategorical    the logits of each choice, joined              int64 (choices,)
DiagonalGaussian    A means, A logarithms of deviations            float32 (A,), unbounded: environments clip it
SquashedGaussian    the same; tanh and scaling follow              float32 (A,), within the bounds

Learners use the methods of tensors; policies draw with numpy, from the generator that they are given, and call
torch nowhere. Both agree within rounding.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ropewalk.rl.environments.spec import ActionSpec, Array, ContinuousAction, DiscreteAction, MultiDiscreteAction

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_LOG_2 = math.log(2.0)
_EDGE = 1.0 - 1e-6
"""The largest share of the bounds whose inverse tanh is taken: beyond it, float32 has too few digits."""

Floats = NDArray[np.float32]


class ActionDistribution(ABC):
    """A kind of distribution of actions.

    Attributes:
        size: P, the number of parameters of one action.
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """P, the number of parameters of one action."""

    @abstractmethod
    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """Return the logarithm of the probability or density of actions, shape (...).

        Args:
            params: shape (..., P).
            action: as stored in blocks, shape (..., *action shape).
        """

    @abstractmethod
    def entropy(self, params: Tensor) -> Tensor:
        """Return the entropy in nats, shape (...), of distributions with parameters of shape (..., P)."""

    @abstractmethod
    def sample(self, params: Floats, rng: np.random.Generator) -> tuple[Array, Floats]:
        """Draw actions, shape (N, ...), and the logarithm of the probability of each, shape (N,).

        Args:
            params: shape (N, P).
            rng: asked once, for numbers of shape (N, ...).
        """

    @abstractmethod
    def mode(self, params: Floats) -> Array:
        """Return the actions, shape (N, ...), that a greedy policy chooses; params has shape (N, P)."""


@dataclass(frozen=True)
class Categorical(ActionDistribution):
    """One of `num` actions, by logits."""

    num: int

    @property
    def size(self) -> int:
        """See `ActionDistribution`."""
        return self.num

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """See `ActionDistribution`."""
        return functional.log_softmax(params, dim=-1).gather(-1, action.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self, params: Tensor) -> Tensor:
        """See `ActionDistribution`."""
        log_probs = functional.log_softmax(params, dim=-1)
        finite = log_probs.clamp(min=torch.finfo(log_probs.dtype).min)  # of forbidden actions: 0 times infinity is NaN
        return -(log_probs.exp() * finite).sum(-1)

    def sample(self, params: Floats, rng: np.random.Generator) -> tuple[Array, Floats]:
        """See `ActionDistribution`. One uniform number for each row, and the inverse of the distribution function."""
        return _draw_choice(params, rng.random((len(params), 1)))

    def mode(self, params: Floats) -> Array:
        """See `ActionDistribution`."""
        return params.argmax(-1)


@dataclass(frozen=True)
class MultiCategorical(ActionDistribution):
    """Several independent choices; the logarithm of the probability is the sum of theirs."""

    nums: tuple[int, ...]

    @property
    def size(self) -> int:
        """See `ActionDistribution`."""
        return sum(self.nums)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """See `ActionDistribution`."""
        parts = zip(self.nums, torch.split(params, list(self.nums), dim=-1), action.unbind(-1), strict=True)
        return torch.stack([Categorical(num).log_prob(logits, chosen) for num, logits, chosen in parts]).sum(0)

    def entropy(self, params: Tensor) -> Tensor:
        """See `ActionDistribution`."""
        parts = zip(self.nums, torch.split(params, list(self.nums), dim=-1), strict=True)
        return torch.stack([Categorical(num).entropy(logits) for num, logits in parts]).sum(0)

    def sample(self, params: Floats, rng: np.random.Generator) -> tuple[Array, Floats]:
        """See `ActionDistribution`."""
        uniform = rng.random((len(params), len(self.nums)))
        drawn = [_draw_choice(part, uniform[:, at : at + 1]) for at, part in enumerate(self._parts(params))]
        return np.stack([action for action, _ in drawn], -1), np.stack([log for _, log in drawn]).sum(0)

    def mode(self, params: Floats) -> Array:
        """See `ActionDistribution`."""
        return np.stack([part.argmax(-1) for part in self._parts(params)], -1)

    def _parts(self, params: Floats) -> list[Floats]:
        return np.split(params, np.cumsum(self.nums[:-1]), axis=-1)


@dataclass(frozen=True)
class DiagonalGaussian(ActionDistribution):
    """Independent normal components: means, then logarithms of standard deviations. Actions are stored unclipped.

    Args:
        num: A, number of components.
        min_log_std: smaller logarithms of deviations count as this one, and get no gradient.
        max_log_std: larger ones likewise.
    """

    num: int
    min_log_std: float = -20.0
    max_log_std: float = 2.0

    @property
    def size(self) -> int:
        """See `ActionDistribution`."""
        return 2 * self.num

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """See `ActionDistribution`."""
        mean, log_std = self.mean_and_log_std(params)
        return _normal_log_prob((action - mean) * torch.exp(-log_std), log_std).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        """See `ActionDistribution`."""
        _, log_std = self.mean_and_log_std(params)
        return (log_std + 0.5 + _HALF_LOG_2PI).sum(-1)

    def rsample(self, params: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Draw actions, shape (..., A), with gradient to the parameters, and their log-densities, shape (...)."""
        mean, log_std = self.mean_and_log_std(params)
        noise = _noise_like(mean, generator)
        return mean + noise * log_std.exp(), _normal_log_prob(noise, log_std).sum(-1)

    def sample(self, params: Floats, rng: np.random.Generator) -> tuple[Array, Floats]:
        """See `ActionDistribution`."""
        mean, log_std = self._numpy_mean_and_log_std(params)
        noise = rng.standard_normal(mean.shape, np.float32)
        return mean + noise * np.exp(log_std), _normal_log_prob(noise, log_std).sum(-1)

    def mode(self, params: Floats) -> Array:
        """See `ActionDistribution`."""
        return self._numpy_mean_and_log_std(params)[0].copy()

    def mean_and_log_std(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means and the clamped logarithms of deviations, shape (..., A) each."""
        mean, log_std = params.chunk(2, dim=-1)
        return mean, log_std.clamp(self.min_log_std, self.max_log_std)

    def _numpy_mean_and_log_std(self, params: Floats) -> tuple[Floats, Floats]:
        log_std = params[:, self.num :]
        return params[:, : self.num], np.minimum(np.maximum(log_std, self.min_log_std), self.max_log_std)


@dataclass(frozen=True)
class SquashedGaussian(ActionDistribution):
    """A normal distribution, squashed by tanh and scaled to the bounds of actions.

    Haarnoja et al.: Soft Actor-Critic Algorithms and Applications, 2018 (https://arxiv.org/abs/1812.05905), appendix C.
    log(1 - tanh(u)^2) is computed as 2 (log 2 - u - softplus(-2 u)), which is finite for every u. The density is that
    of the scaled action, the one that environments take.

    Args:
        low: least value of each component.
        high: largest value.
        min_log_std: smaller logarithms of deviations count as this one, and get no gradient.
        max_log_std: larger ones likewise.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    min_log_std: float = -20.0
    max_log_std: float = 2.0

    def __post_init__(self) -> None:
        if not all(math.isfinite(low) and math.isfinite(high) and low < high for low, high in self.bounds):
            raise ValueError(
                f"a squashed Gaussian needs finite bounds, each low below its high, but they are {self.bounds}; wrap "
                "the environment so that its actions have bounds"
            )

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """The least and the largest value of each component."""
        return list(zip(self.low, self.high, strict=True))

    @property
    def size(self) -> int:
        """See `ActionDistribution`."""
        return 2 * len(self.low)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """See `ActionDistribution`. Actions at the bounds count as slightly inside, where the density is finite."""
        mean, log_std = self._normal.mean_and_log_std(params)
        centre, half = (params.new_tensor(array) for array in self._scale)
        raw = torch.atanh(((action - centre) / half).clamp(-_EDGE, _EDGE))
        return self._corrected(_normal_log_prob((raw - mean) * torch.exp(-log_std), log_std), raw).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        """Raise: there is no closed form; the mean of -log_prob over samples estimates it."""
        raise NotImplementedError(
            "the entropy of a squashed Gaussian has no closed form; take -log_prob of `rsample`, as SAC does"
        )

    def rsample(self, params: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Draw actions, shape (..., A), with gradient to the parameters, and their log-densities, shape (...)."""
        mean, log_std = self._normal.mean_and_log_std(params)
        noise = _noise_like(mean, generator)
        raw = mean + noise * log_std.exp()
        centre, half = (params.new_tensor(array) for array in self._scale)
        return centre + half * torch.tanh(raw), self._corrected(_normal_log_prob(noise, log_std), raw).sum(-1)

    def sample(self, params: Floats, rng: np.random.Generator) -> tuple[Array, Floats]:
        """See `ActionDistribution`."""
        num = len(self.low)
        log_std = np.clip(params[:, num:], self.min_log_std, self.max_log_std)
        noise = rng.standard_normal(log_std.shape, np.float32)
        raw = params[:, :num] + noise * np.exp(log_std)
        _, half = self._scale
        jacobian = 2 * (_LOG_2 - raw - np.logaddexp(0, -2 * raw)) + np.log(half)
        return self._squashed(raw), (_normal_log_prob(noise, log_std) - jacobian).sum(-1, dtype=np.float32)

    def mode(self, params: Floats) -> Array:
        """See `ActionDistribution`: tanh of the mean, the median of each component."""
        return self._squashed(params[:, : len(self.low)])

    @property
    def _normal(self) -> DiagonalGaussian:
        return DiagonalGaussian(len(self.low), self.min_log_std, self.max_log_std)

    @property
    def _scale(self) -> tuple[Floats, Floats]:
        low, high = np.array(self.low, np.float32), np.array(self.high, np.float32)
        return (low + high) * np.float32(0.5), (high - low) * np.float32(0.5)

    def _squashed(self, raw: Floats) -> Floats:
        centre, half = self._scale
        return centre + half * np.tanh(raw)

    def _corrected(self, log_prob: Tensor, raw: Tensor) -> Tensor:
        """Densities of `raw` as densities of the action that it becomes."""
        half = raw.new_tensor(self._scale[1])
        return log_prob - 2 * (_LOG_2 - raw - functional.softplus(-2 * raw)) - half.log()


def for_spec(action: ActionSpec) -> ActionDistribution:
    """Return the distribution of an environment's actions; what the environment gets of continuous ones is clipped."""
    match action:
        case DiscreteAction(num):
            return Categorical(num)
        case MultiDiscreteAction(nums):
            return MultiCategorical(nums)
        case ContinuousAction(low, _):
            return DiagonalGaussian(len(low))


def _draw_choice(logits: Floats, uniform: NDArray[np.float64]) -> tuple[NDArray[np.int64], Floats]:
    """Choices by the inverse of the distribution function. A choice of probability 0 is never drawn, for any number.

    By numpy's operations themselves, which methods of arrays call from Python: each step of an actor does this.
    """
    shifted = logits - np.maximum.reduce(logits, -1, keepdims=True)
    sums = np.add.accumulate(np.exp(shifted, dtype=np.float64), -1)
    action = np.add.reduce(sums <= uniform * sums[:, -1:], -1, dtype=np.int64)
    log_prob = shifted[_numbers_to(len(action)), action] - np.log(sums[:, -1])
    return action, log_prob.astype(np.float32)


@functools.lru_cache(64)
def _numbers_to(num: int) -> NDArray[np.int64]:
    return np.arange(num)


def _normal_log_prob(noise: Any, log_std: Any) -> Any:  # of tensors, or of arrays
    return -0.5 * noise * noise - log_std - _HALF_LOG_2PI


def _noise_like(mean: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)


__all__ = ["ActionDistribution", "Categorical", "DiagonalGaussian", "MultiCategorical", "SquashedGaussian", "for_spec"]
