"""`Observer`: base class of objects that are told of each event of an exchange, such as traces and stall detectors.

All methods do nothing here; an observer overrides those it needs. They are called from the thread in which the event
happens (the caller's, the communication thread, the completion thread) and must be fast and thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.errors import ExchangeStalled
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.exchange import StepRecord
from ropewalk.exchange.groups.group import Group

WHOLE_STEP = -1
"""Stands for the bucket where a phase belongs to the whole step."""


class Observer:
    """Receives every event of an exchange; this base class ignores them."""

    def bind(self, layouts: Sequence[Layout], group: Group) -> None:
        """The exchange was bound, or changed its buckets or its group."""

    def begin(self, record: StepRecord) -> None:
        """A step begins."""

    def ready(self, name: str) -> None:
        """The gradient of a parameter is complete on this member."""

    def enqueued(self, bucket: int, names: Sequence[str]) -> None:
        """A bucket is full and waits for the communication thread."""

    def phase(self, name: str, bucket: int, began: float, ended: float) -> None:
        """A phase of a bucket is over: "queue", "agree", "encode", "negotiate", "transfer", "decode", "wait", "commit".

        Args:
            name: name of the phase.
            bucket: index of the bucket; `WHOLE_STEP` where the phase belongs to none.
            began: when it began, in seconds of `time.perf_counter`.
            ended: when it ended, on the same clock.
        """

    def sent(self, bucket: int, mode: str, num_values: int) -> None:
        """A bucket travelled "dense", "sparse" or "bypass", with `num_values` components of this member."""

    def note(self, text: str) -> None:
        """Something happened that a person should know."""

    def ended(self, step: int) -> None:
        """The step has succeeded and its state is committed."""

    def failed(self, error: BaseException) -> None:
        """The step failed; nothing of it counts."""

    def waiting(self, waited_s: float) -> None:
        """This member has waited `waited_s` seconds for the others; an exception raised here ends the wait.

        `wait` calls it about once per second. In a hook of DDP, where no thread waits, it is called once, with 0.
        """

    def explained(self, error: ExchangeStalled) -> ExchangeStalled:
        """Return the error of a group, which knows only that it waited, with what this observer knows added."""
        return error

    def close(self) -> None:
        """The exchange is closed; may be called twice."""
