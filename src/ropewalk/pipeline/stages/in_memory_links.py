"""Links between stages of one process: values and gradients wait under their tags until they are received."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.plans import Plan, PlanWorker


class Tag(NamedTuple):
    """The identity of a message; sender and receiver match messages by tag, never by order."""

    edge: str
    source: int
    target: int
    micro_batch: int

    @property
    def is_gradient(self) -> bool:
        """Whether the message holds gradients, which go to an earlier stage."""
        return self.target < self.source

    def __str__(self) -> str:
        what = "gradient of " if self.is_gradient else ""
        return f"{what}{self.edge} of micro-batch {self.micro_batch} from stage {self.source} to stage {self.target}"


@dataclass(frozen=True, slots=True)
class LinkMessage:
    """One message: a value, or the gradients of its tensors (None where there is none)."""

    tree: Any
    generator: Tensor | None = None
    """With a value: the state of the random generator after the sending stage, if a later stage needs it."""
    weight: float | None = None
    """With a gradient: the weight of the micro-batch in its step; None for a loss that is a sum."""


class Links(Protocol):
    """The interface of links that a stage worker needs.

    `send` gives the message away, and is called only while `has_room` returns True. `receive` removes a message, and is
    called only once `has` returns True. Messages with different tags may arrive in any order.
    """

    def has_room(self, tag: Tag) -> bool: ...
    def send(self, tag: Tag, parcel: LinkMessage) -> None: ...
    def has(self, tag: Tag) -> bool: ...
    def receive(self, tag: Tag) -> LinkMessage: ...


@dataclass(slots=True)
class InMemoryLinks:
    """Links between workers that share a process, unbounded or with a number of slots for each link.

    A link carries the values of one edge from a stage to another, or their gradients back, between two workers.
    """

    plan: Plan
    slots: int | None = None
    _parcels: dict[Tag, LinkMessage] = field(default_factory=dict[Tag, LinkMessage])
    _num_waiting: Counter[tuple[Tag, PlanWorker, PlanWorker]] = field(
        default_factory=Counter[tuple[Tag, PlanWorker, PlanWorker]]
    )

    def has_room(self, tag: Tag) -> bool:
        return self.slots is None or self._num_waiting[self._link(tag)] < self.slots

    def send(self, tag: Tag, parcel: LinkMessage) -> None:
        if tag in self._parcels:
            raise ScheduleInvalid(f"{tag} is sent a second time before it was received")
        self._parcels[tag] = parcel
        if self.slots is not None:
            self._num_waiting[self._link(tag)] += 1

    def has(self, tag: Tag) -> bool:
        return tag in self._parcels

    def receive(self, tag: Tag) -> LinkMessage:
        if self.slots is not None:
            self._num_waiting[self._link(tag)] -= 1
        return self._parcels.pop(tag)

    @property
    def waiting(self) -> Mapping[Tag, LinkMessage]:
        """The messages that were sent and not received yet."""
        return self._parcels

    def _link(self, tag: Tag) -> tuple[Tag, PlanWorker, PlanWorker]:
        plan = self.plan
        sender, receiver = plan.worker_of(tag.source, tag.micro_batch), plan.worker_of(tag.target, tag.micro_batch)
        return tag._replace(micro_batch=0), sender, receiver
