"""Sums between workers over their links: every worker sends its part to all others, and adds up all parts itself.

All add in the order of the members, so all get bit-identical sums, equal to those of `InMemorySums`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

from ropewalk.pipeline.plans import PlanWorker
from ropewalk.pipeline.stages.gradient_sums import Contributor, GradientContribution, SumKey
from ropewalk.training.links import ProcessLinks


@dataclass(slots=True)
class _Sum:
    parts: dict[Contributor, GradientContribution] = field(default_factory=dict[Contributor, GradientContribution])
    total: GradientContribution | None = None
    taken: int = 0


class LinkSums:
    """The sums of one worker; see `stages.gradient_sums.Sums`.

    Args:
        links: the links of the worker.
    """

    def __init__(self, links: ProcessLinks) -> None:
        self._links = links
        self._sums: dict[SumKey, _Sum] = {}

    def contribute(self, key: SumKey, member: Contributor, contribution: GradientContribution) -> None:
        """Send a member's part to the others, once."""
        found = self._sums.setdefault(key, _Sum())
        assert member not in found.parts, f"{member} contributes twice to {key}"
        found.parts[member] = contribution
        others = {self._worker(other) for other in key.members} - {self._links.me}
        for worker in sorted(others):
            self._links.send_contribution(worker, key, member, contribution)

    def missing(self, key: SumKey) -> Sequence[Contributor]:
        """Return the members whose parts have not arrived."""
        found = self._sums.setdefault(key, _Sum())
        absent = [member for member in key.members if member not in found.parts]
        if absent:
            found.parts.update(self._links.contributions(key))
            absent = [member for member in absent if member not in found.parts]
        return absent

    def take(self, key: SumKey, member: Contributor) -> GradientContribution:
        """Return the sum of all parts, none of which may be missing; each member of this worker takes it once."""
        found = self._sums[key]
        if found.total is None:
            found.total = reduce(lambda left, right: left + right, (found.parts[one] for one in key.members))
        found.taken += 1
        if found.taken == sum(self._worker(one) == self._links.me for one in key.members):
            del self._sums[key]
            return found.total  # its parts were released
        return found.total.copy()

    def _worker(self, member: Contributor) -> PlanWorker:
        return PlanWorker(self._links.plan.placement[member.stage], member.replica)


__all__ = ["LinkSums"]
