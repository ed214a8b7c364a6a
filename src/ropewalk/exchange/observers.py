"""`Observer`: base class of objects that are told of each event of an exchange, such as traces and stall detectors.

All its methods do nothing here; an observer overrides those it needs. `Observers` passes events to the observers of one
exchange, one after the other, from the thread in which the event happens (the caller's, the communication thread, the
completion thread): they must be fast and thread-safe.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Generator, Iterable, Sequence

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


logger = logging.getLogger(__name__)


class Observers:
    """Tells all observers of an exchange; see `Observer` for the meaning of each call.

    Args:
        observers: the observers, in the order in which they are called.
    """

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)

    def bind(self, layouts: Sequence[Layout], group: Group) -> None:
        for observer in self._observers:
            observer.bind(layouts, group)

    def begin(self, record: StepRecord) -> None:
        for observer in self._observers:
            observer.begin(record)

    def ready(self, name: str) -> None:
        for observer in self._observers:
            observer.ready(name)

    def enqueued(self, bucket: int, names: Sequence[str]) -> None:
        for observer in self._observers:
            observer.enqueued(bucket, names)

    def phase(self, name: str, bucket: int, began: float) -> None:
        """Report a phase of a bucket that began at `began`, in seconds of `time.perf_counter`, and ends now."""
        ended = time.perf_counter()
        for observer in self._observers:
            observer.phase(name, bucket, began, ended)

    @contextlib.contextmanager
    def timed(self, phase: str, bucket: int) -> Generator[None]:
        """Tell the observers how long a phase of a bucket takes."""
        began = time.perf_counter()
        yield
        self.phase(phase, bucket, began)

    def sent(self, bucket: int, mode: str, num_values: int) -> None:
        for observer in self._observers:
            observer.sent(bucket, mode, num_values)

    def note(self, text: str) -> None:
        for observer in self._observers:
            observer.note(text)

    def ended(self, step: int) -> None:
        for observer in self._observers:
            observer.ended(step)

    def failed(self, step: int, error: BaseException) -> BaseException:
        """Report a failed step; return the error, with what observers know added."""
        for observer in self._observers:
            # If an observer fails, the threads that wait for the step must still hear that the step failed.
            try:
                if isinstance(error, ExchangeStalled):
                    error = observer.explained(error)
                observer.failed(error)
            except Exception:
                logger.exception("%s could not be told that step %d failed", type(observer).__name__, step)
        return error

    def waiting(self, waited_s: float) -> None:
        for observer in self._observers:
            observer.waiting(waited_s)

    def close(self) -> None:
        for observer in self._observers:
            observer.close()
