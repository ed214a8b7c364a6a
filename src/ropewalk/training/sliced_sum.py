"""One sum as a worker sees it: what it sends to whom, and when the total is there. A state machine without links.

Two workers, and the copies of a tied parameter, send each other all that they have. Three or more replicas of a stage
sum a large gradient in slices: slice k of it belongs to replica k, which adds it up for all.

    replica 0   a0 a1 a2        a1 ─▶ replica 1        replica 0   a0 + b0 + c0 ─▶ replicas 1 and 2
    replica 1   b0 b1 b2   ─    b0 ─▶ replica 0   ─    replica 1   a1 + b1 + c1 ─▶ replicas 0 and 2
    replica 2   c0 c1 c2        c0 ─▶ replica 0 ...    replica 2   a2 + b2 + c2 ─▶ replicas 0 and 1
                                1 parts                            2 totals

Each of r replicas sends (r - 1) / r of the bytes twice, as in a ring, which is the least (Patarasuk and Yuan, Bandwidth
optimal all-reduce algorithms, 2009). Unlike a ring it adds in the order of the members, and takes the time of two
messages for any r.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from ropewalk.pipeline.stages.gradient_sums import Contributor, GradientContribution, SumKey

LEAST_BYTES = 64 << 10
"""Gradients that are smaller are sent whole to every member."""
_FEWEST = 3
"""The least number of replicas that sum in slices. Two send as many bytes either way, and whole gradients once."""


class SlicedGradient(NamedTuple):
    """A gradient of which slices are sent; its elements are counted in row-major order, whatever its strides."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """The strides of a sum of such gradients: kernels that read it add in another order for others."""


class SumMessage(NamedTuple):
    """A message from one worker to another, for one sum."""

    whole: GradientContribution | None
    """What is not sliced, with None for the gradients that are; None in a total."""
    slices: Mapping[SlicedGradient, Tensor]
    """In a part the receiver's slices of the sender's gradients, in a total the sender's slices of the sums; each of
    shape (elements,)."""


class SumPart(NamedTuple):
    """The identity of a message within a sum."""

    member: Contributor
    """The sender."""
    is_total: bool


class SlicedSum:
    """One sum at one worker.

    Args:
        key: the sum.
    """

    def __init__(self, key: SumKey) -> None:
        self._members = key.members
        self._is_sliced = key.is_of_replicas and len(key.members) >= _FEWEST
        self._messages: dict[SumPart, SumMessage] = {}

    def contribute(self, member: Contributor, contribution: GradientContribution) -> dict[Contributor, SumMessage]:
        """Take in the contribution of a member of this worker; return the part for each member, this one included."""
        assert SumPart(member, False) not in self._messages, f"{member} contributes twice"
        whole, sliced = contribution, {}
        if self._is_sliced:
            whole, sliced = self._cut(contribution)
        parts = {
            other: SumMessage(whole, {gradient: slices[index] for gradient, slices in sliced.items()})
            for index, other in enumerate(self._members)
        }
        self.arrive(SumPart(member, False), parts[member])
        return parts

    def arrive(self, part: SumPart, message: SumMessage) -> None:
        """Take in a message of another worker."""
        self._messages[part] = message

    def add_up(self, member: Contributor) -> SumMessage | None:
        """Return the total of a member's slices, for all others, as soon as it can be known; None before and after."""
        if SumPart(member, True) in self._messages or not self._has_slices or self._absent(is_total=False):
            return None
        layouts: dict[str, SlicedGradient] = {}
        terms: dict[str, list[Tensor]] = {}
        for one in self._members:
            for gradient, term in self._part(one).slices.items():
                layouts.setdefault(gradient.name, gradient)
                terms.setdefault(gradient.name, []).append(term)
        total = SumMessage(None, {layouts[name]: _added(found) for name, found in terms.items()})
        self.arrive(SumPart(member, True), total)
        return total

    @property
    def missing(self) -> Sequence[Contributor]:
        """The members whose parts, or else whose totals, are not here yet."""
        return self._absent(is_total=False) or (self._absent(is_total=True) if self._has_slices else ())

    def total(self) -> GradientContribution:
        """Return the sum of all contributions, of which nothing may be missing."""
        whole = reduce(lambda left, right: left + right, map(self._whole, self._members))
        if not self._has_slices:
            return whole
        totals = [self._messages[SumPart(member, True)].slices for member in self._members]
        joined = {gradient.name: _joined(gradient, [slices[gradient] for slices in totals]) for gradient in totals[0]}
        return GradientContribution({name: joined.get(name) for name in whole.gradients}) + whole

    # --- private ------------------------------------------------------------------------------------------------------

    def _cut(
        self, contribution: GradientContribution
    ) -> tuple[GradientContribution, dict[SlicedGradient, Sequence[Tensor]]]:
        """Return what every member needs, and the slices of the rest by member."""
        gradients = dict(contribution.gradients)
        sliced: dict[SlicedGradient, Sequence[Tensor]] = {}
        for name, gradient in contribution.gradients.items():
            if gradient is None or gradient.layout is not torch.strided or gradient.nbytes < LEAST_BYTES:
                continue
            stride = (gradient if gradient.is_contiguous() else torch.empty_like(gradient, device="meta")).stride()
            sliced[SlicedGradient(name, tuple(gradient.shape), stride)] = gradient.reshape(-1).tensor_split(
                len(self._members)
            )
            gradients[name] = None
        return replace(contribution, gradients=gradients), sliced

    @property
    def _has_slices(self) -> bool:
        """Whether totals are sent; known when the parts of all members are here."""
        return any(not part.is_total and message.slices for part, message in self._messages.items())

    def _absent(self, *, is_total: bool) -> list[Contributor]:
        return [member for member in self._members if SumPart(member, is_total) not in self._messages]

    def _part(self, member: Contributor) -> SumMessage:
        return self._messages[SumPart(member, False)]

    def _whole(self, member: Contributor) -> GradientContribution:
        whole = self._part(member).whole
        assert whole is not None
        return whole


def _added(terms: Sequence[Tensor]) -> Tensor:
    """Add terms in their order; they do not change, as they may lie in memory of other processes."""
    if len(terms) == 1:
        return terms[0]
    total = terms[0] + terms[1]
    for term in terms[2:]:
        total.add_(term)
    return total


def _joined(gradient: SlicedGradient, slices: Sequence[Tensor]) -> Tensor:
    """Put the slices of a gradient together."""
    joined = torch.cat(list(slices)).view(gradient.shape)
    if joined.stride() == gradient.stride:
        return joined
    return torch.empty_strided(gradient.shape, gradient.stride, dtype=joined.dtype, device=joined.device).copy_(joined)


__all__ = ["LEAST_BYTES", "SlicedGradient", "SlicedSum", "SumMessage", "SumPart"]
