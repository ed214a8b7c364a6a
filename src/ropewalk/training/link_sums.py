"""Sums between workers over their links: `SlicedSum` decides what is sent to whom, and this carries it.

All add in the order of the members, so all get bit-identical sums, equal to those of `InMemorySums`.

A worker that has contributed waits for its total in the step that follows, and calls `missing` again whenever something
has arrived. That is when it adds up its slices for the others, so none of them waits for a worker that computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ropewalk import injection
from ropewalk.pipeline.plans import PlanWorker
from ropewalk.pipeline.stages.gradient_sums import Contributor, GradientContribution, SumKey
from ropewalk.training.links import ProcessLinks
from ropewalk.training.sliced_sum import SlicedSum, SumMessage, SumPart


@dataclass(slots=True)
class _Sum:
    sliced: SlicedSum
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
        parts = self._sum(key).sliced.contribute(member, contribution)
        self._send(key, SumPart(member, False), {self._worker(other): part for other, part in parts.items()})

    def missing(self, key: SumKey) -> Sequence[Contributor]:
        """Return the members whose parts, or else the totals of whose slices, have not arrived."""
        absent = self._sum(key).sliced.missing
        return self._go_on(key).missing if absent else absent

    def take(self, key: SumKey, member: Contributor) -> GradientContribution:
        """Return the sum of all parts, none of which may be missing; each member of this worker takes it once."""
        found = self._sums[key]
        if found.total is None:
            found.total = found.sliced.total()
        found.taken += 1
        if found.taken == len(self._here(key)):
            del self._sums[key]
            return found.total  # its parts were released
        return found.total.copy()

    def _go_on(self, key: SumKey) -> SlicedSum:
        """Take in what has arrived for a sum, and send the totals that it completes."""
        sliced = self._sum(key).sliced
        for part, message in self._links.parts(key).items():
            sliced.arrive(part, message)
        for member in self._here(key):
            if (total := sliced.add_up(member)) is not None:
                self._send(key, SumPart(member, True), dict.fromkeys(map(self._worker, key.members), total))
        return sliced

    def _send(self, key: SumKey, part: SumPart, messages: Mapping[PlanWorker, SumMessage]) -> None:
        me = self._links.me  # each begins with the next one, so that they do not all send to the same worker at once
        for worker in sorted(messages.keys() - {me}, key=lambda worker: (worker < me, worker)):
            if injection.visit:
                injection.visit(
                    "stage.before_part", f"{key.what} v{key.version} {'total' if part.is_total else 'part'}"
                )
            self._links.send_part(worker, key, part, messages[worker])

    def _sum(self, key: SumKey) -> _Sum:
        found = self._sums.get(key)
        if found is None:
            found = self._sums[key] = _Sum(SlicedSum(key))
        return found

    def _here(self, key: SumKey) -> Sequence[Contributor]:
        return [member for member in key.members if self._worker(member) == self._links.me]

    def _worker(self, member: Contributor) -> PlanWorker:
        return PlanWorker(self._links.plan.placement[member.stage], member.replica)


__all__ = ["LinkSums"]
