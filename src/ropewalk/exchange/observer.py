"""`Observer`: who is told what an exchange does, such as a trace, a stall reporter or a collector of times.

All methods do nothing here, so an observer overrides what it wants to know. They are called from the thread in which
the thing happens (the caller's, the communication thread, the completion thread) and must be quick and thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.errors import ExchangeStalled
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.exchange import StepRecord
from ropewalk.exchange.groups.group import Group

#: As the bucket of a phase that belongs to the whole step.
WHOLE_STEP = -1


class Observer:
    """Told of everything that happens in an exchange; keeps nothing."""

    def bind(self, layouts: Sequence[Layout], group: Group) -> None:
        """The exchange was bound, or goes on with other buckets or another group."""

    def begin(self, record: StepRecord) -> None:
        """A step begins."""

    def ready(self, name: str) -> None:
        """The gradient of a parameter is complete here."""

    def enqueued(self, bucket: int, names: Sequence[str]) -> None:
        """A bucket is full and waits for the communication thread."""

    def phase(self, name: str, bucket: int, began: float, ended: float) -> None:
        """A phase of a bucket is over: "queue", "agree", "encode", "negotiate", "transfer", "decode", "wait", "commit".

        Args:
            name: of the phase.
            bucket: its index; `WHOLE_STEP` where it belongs to none.
            began: by `time.perf_counter`.
            ended: likewise.
        """

    def sent(self, bucket: int, mode: str, num_values: int) -> None:
        """A bucket went "dense", "sparse" or "bypass", with so many components of this member's."""

    def note(self, text: str) -> None:
        """Something that a person should know happened."""

    def ended(self, step: int) -> None:
        """The step is done and its state taken over."""

    def failed(self, error: BaseException) -> None:
        """The step failed; nothing of it counts."""

    def waiting(self, waited_s: float) -> None:
        """This member waits for the others since so long; what this raises ends the wait.

        `wait` calls it about once per second; in a hook of DDP, where nobody waits here, it is called once, with 0.
        """

    def explained(self, error: ExchangeStalled) -> ExchangeStalled:
        """The error of a group, which knows only that it waited, with what is known beside."""
        return error

    def close(self) -> None:
        """The exchange ends; may be called twice."""
