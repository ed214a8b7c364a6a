"""Sums of gradients between workers of one process: replicas of a stage, and copies of a tied parameter.

Each member contributes the sum over its micro-batches since the last update, and takes the total, added in the order of
the members. So the result does not depend on which member comes first, and is the same to the bit for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple, Protocol

from torch import Tensor

from ropewalk.pipeline.stages.batch_norm import Moments
from ropewalk.pipeline.stages.gradient_norm import Norms


@dataclass(frozen=True, slots=True)
class GradientContribution:
    """Sums over micro-batches, by the names of parameters and of batch normalisations."""

    gradients: Mapping[str, Tensor | None]
    """By parameter, with its shape and dtype; None if no micro-batch had a gradient."""
    weight: float | None = None
    moments: Mapping[str, Moments] = field(default_factory=dict[str, Moments])
    norms: Norms | None = None
    means: frozenset[str] = frozenset()
    """Names of the gradients that are means already."""

    def __add__(self, other: GradientContribution) -> GradientContribution:
        gradients = {name: _added(mine, other.gradients[name]) for name, mine in self.gradients.items()}
        weight = other.weight if self.weight is None else self.weight + (other.weight or 0.0)
        moments = dict(self.moments)
        for name, others in other.moments.items():
            moments[name] = moments[name] + others if name in moments else others
        norms = self.norms if other.norms is None else other.norms if self.norms is None else self.norms + other.norms
        return GradientContribution(gradients, weight, moments, norms)

    def copy(self) -> GradientContribution:
        """Return a copy whose gradients the caller may change."""
        gradients = {name: None if one is None else one.clone() for name, one in self.gradients.items()}
        return GradientContribution(gradients, self.weight, self.moments, self.norms, self.means)


_REPLICAS = "replicas of stage "


class Contributor(NamedTuple):
    """The stage and replica that contribute."""

    stage: int
    replica: int


class SumKey(NamedTuple):
    """The identity of a sum: what is summed, among which members, for the step that makes which version."""

    what: str
    members: tuple[Contributor, ...]
    version: int | None

    @property
    def is_of_replicas(self) -> bool:
        """Whether replicas of one stage sum the parameters that this stage alone has."""
        return self.what.startswith(_REPLICAS)

    @classmethod
    def of_replicas(cls, stage: int, members: tuple[Contributor, ...], version: int | None) -> SumKey:
        """Return the key of the sum over the replicas of a stage."""
        return cls(f"{_REPLICAS}{stage}", members, version)


class Sums(Protocol):
    """The interface of sums that a stage worker needs.

    `contribute` gives the tensors away; it is called once by each member of a key. `missing` returns the members that
    have not contributed yet. When there are none, each member calls `take` once, which returns a total of its own.
    """

    def contribute(self, key: SumKey, member: Contributor, contribution: GradientContribution) -> None: ...
    def missing(self, key: SumKey) -> Sequence[Contributor]: ...
    def take(self, key: SumKey, member: Contributor) -> GradientContribution: ...


@dataclass(slots=True)
class InMemorySums:
    """Sums between workers of one process."""

    _parts: dict[SumKey, dict[Contributor, GradientContribution]] = field(
        default_factory=dict[SumKey, dict[Contributor, GradientContribution]]
    )
    _totals: dict[SumKey, tuple[GradientContribution, set[Contributor]]] = field(
        default_factory=dict[SumKey, tuple[GradientContribution, set[Contributor]]]
    )

    def contribute(self, key: SumKey, member: Contributor, contribution: GradientContribution) -> None:
        parts = self._parts.setdefault(key, {})
        assert member not in parts, f"{member} contributes twice to {key}"
        parts[member] = contribution
        if len(parts) == len(key.members):
            total = reduce(lambda left, right: left + right, (parts[member] for member in key.members))
            self._totals[key] = total, set(key.members)
            del self._parts[key]

    def missing(self, key: SumKey) -> Sequence[Contributor]:
        if key in self._totals:
            return ()
        return [member for member in key.members if member not in self._parts.get(key, {})]

    def take(self, key: SumKey, member: Contributor) -> GradientContribution:
        total, waiting = self._totals[key]
        waiting.discard(member)
        if not waiting:
            del self._totals[key]
        return total.copy()


def _added(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    if left is None or right is None:
        return right if left is None else left
    return left + right
