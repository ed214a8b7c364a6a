"""Normalised observations: running mean and deviation, updated by learners and sent to policies with the weights.

Counts, means and sums of squared deviations are float64 and merged as by Chan, Golub and LeVeque, Updating formulae and
a pairwise algorithm for computing sample variances, 1979, equation 2.1. `ropewalk.population` keeps sums of squares
instead, which candidates send as they are; those lose the variance where the mean is large against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from ropewalk.rl.environments.spec import ArraySpec, EnvironmentSpec
from ropewalk.rl.networks.torso import ObservationTensor, State, Torso, TorsoFactory, as_torso

_LEAST_VARIANCE = 1e-8


class RunningMoments(nn.Module):
    """Mean and variance, of each component, of all the arrays that were shown to `update`.

    Args:
        shape: shape of one array.
        clip: normalised values are clipped to -clip and clip.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor
    inverse: Tensor

    def __init__(self, shape: tuple[int, ...], clip: float = 10.0) -> None:
        super().__init__()
        self.clip = clip
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("inverse", torch.ones(shape, dtype=torch.float64))

    @property
    def variance(self) -> Tensor:
        """Variance of each component, float64; 1 before anything was shown."""
        return self.squares / self.count if self.count > 0 else torch.ones_like(self.squares)

    @torch.no_grad()
    def update(self, values: Tensor, mask: Tensor | None = None) -> None:
        """Merge arrays into the statistics.

        Args:
            values: shape (..., *shape).
            mask: bool, shape (...): arrays where it is False are left out.
        """
        rows = values.reshape(-1, *self.mean.shape).double()
        if mask is not None:
            rows = rows[mask.reshape(-1)]
        if not len(rows):
            return
        mean = rows.mean(0)
        squares = (rows - mean).square().sum(0)
        total = self.count + len(rows)
        apart = mean - self.mean
        self.squares += squares + apart.square() * (self.count * len(rows) / total)
        self.mean += apart * (len(rows) / total)
        self.count.copy_(total)
        self.inverse.copy_((self.variance + _LEAST_VARIANCE).rsqrt())

    def forward(self, values: Tensor) -> Tensor:
        """Return values, shape (..., *shape), in deviations from the mean, clipped; float32."""
        return ((values - self.mean) * self.inverse).clamp(-self.clip, self.clip).float()


@dataclass(frozen=True)
class Normalised:
    """Settings of normalised observations; called with a spec, it makes the torso.

        rl.Normalised(rl.MLP((64, 64)))

    Args:
        inner: makes the torso that reads them.
        clip: in deviations from the mean.
    """

    inner: TorsoFactory
    clip: float = 10.0

    def __call__(self, spec: EnvironmentSpec) -> NormalisedTorso:
        return NormalisedTorso(self, spec)


class NormalisedTorso(Torso):
    """See `Normalised`. Entries that are bytes or booleans are passed on as they are."""

    def __init__(self, settings: Normalised, spec: EnvironmentSpec) -> None:
        super().__init__()
        entries = {"": spec.observation} if isinstance(spec.observation, ArraySpec) else dict(spec.observation)
        self._names = [name for name, entry in entries.items() if entry.dtype.startswith("float")]
        if not self._names:
            raise ValueError(
                "only observations of floating-point numbers are normalised, but these have dtype "
                f"{', '.join(entry.dtype for entry in entries.values())}; leave out rl.Normalised"
            )
        self.moments: nn.ModuleList = nn.ModuleList(
            RunningMoments(entries[name].shape, settings.clip) for name in self._names
        )
        self.inner: Torso = as_torso(settings.inner(spec), spec)
        self.features: int = self.inner.features

    @property
    def parts(self) -> dict[str, RunningMoments]:
        """The statistics of each normalised entry; those of a single observation have the name ""."""
        return dict(zip(self._names, cast("Iterable[RunningMoments]", self.moments), strict=True))

    def initial_state(self, batch: int) -> State:
        """See `Torso`."""
        return self.inner.initial_state(batch)

    def forward(self, observation: ObservationTensor) -> Tensor:
        """Return features, shape (B, F), of observations, shape (B, ...), where the inner torso has no memory."""
        return self.inner(self._normalised(observation))

    def unroll(
        self, observation: ObservationTensor, first: Tensor, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, State]:
        """See `Torso`."""
        return self.inner.unroll(self._normalised(observation), first, state)

    def observe(self, observation: ObservationTensor, mask: Tensor | None = None) -> None:
        """Merge observations into the statistics; learners call it once for each observation.

        Args:
            observation: shape (..., *observation shape).
            mask: bool, shape (...): observations where it is False are left out.
        """
        for name, moments in self.parts.items():
            moments.update(_entry(observation, name), mask)

    def _normalised(self, observation: ObservationTensor) -> ObservationTensor:
        parts = {name: moments(_entry(observation, name)) for name, moments in self.parts.items()}
        if isinstance(observation, Tensor):
            return parts[""]
        return {**observation, **parts}


def observe(network: nn.Module, observation: ObservationTensor, mask: Tensor | None = None) -> None:
    """Merge observations into the statistics of every normalised torso of a network; see `NormalisedTorso.observe`."""
    for module in network.modules():
        if isinstance(module, NormalisedTorso):
            module.observe(observation, mask)


def _entry(observation: ObservationTensor, name: str) -> Tensor:
    return observation if isinstance(observation, Tensor) else observation[name]


def refuse_statistics(network: nn.Module, agent: str) -> None:
    """Raise if a network has statistics of observations, for an agent that does not keep them up to date.

    Raises:
        ValueError: it has.
    """
    if any(isinstance(module, RunningMoments) for module in network.modules()):
        raise ValueError(
            f"{agent} keeps no statistics of observations, so rl.Normalised would have no effect; scale them in the "
            "environment by numbers that stay the same, as gymnasium.wrappers.RescaleObservation does"
        )


__all__ = ["Normalised", "NormalisedTorso", "RunningMoments", "observe", "refuse_statistics"]
