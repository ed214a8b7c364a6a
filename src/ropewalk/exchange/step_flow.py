"""`StepFlow`: passes the buckets of a step through two threads, one bucket after the other.

    send ─▶ communication thread: agree, before the first bucket; reduce_bucket ─▶ completion thread: wait, copy back
                                                                                        └ after the last one: settled

An error raised on either thread fails the step: the rest of it is not computed, and all waiting threads wake up.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Protocol

import torch

from ropewalk.exchange import not_finite
from ropewalk.exchange.bucket_store import BucketStore
from ropewalk.exchange.exchange import StepRecord
from ropewalk.exchange.not_finite import NanPolicy
from ropewalk.exchange.observers import WHOLE_STEP, Observers
from ropewalk.exchange.open_step import Agreement, Bucket, OpenStep

Done = Callable[[BaseException | None], None]
"""Called when a bucket is done, with the error of its step or None."""


class BucketReducer(Protocol):
    """Turns a bucket into its mean over members; see `BucketedExchange` for each method."""

    def agree(self, record: StepRecord) -> Agreement: ...
    def sync_bucket(self, bucket: Bucket, agreement: Agreement) -> None: ...
    def reduce_bucket(self, bucket: Bucket, step: OpenStep) -> Callable[[], None] | None: ...
    def tell_findings(self, names: Sequence[str]) -> Mapping[int, Sequence[str]]: ...
    def settled(self, step: OpenStep, *, skipped: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class _Passage:
    """One bucket on its way through the two threads."""

    step: OpenStep
    bucket: Bucket
    is_last: bool
    done: Done | None


class StepFlow:
    """The two threads of one exchange, between `bind` and `close`.

    Args:
        reducer: turns a bucket into its mean over members.
        buckets: the buckets of the exchange.
        observers: are told of each phase.
        nan: what happens to NaN and infinity.
        name: prefix of the threads' names.
    """

    def __init__(
        self, reducer: BucketReducer, buckets: BucketStore, observers: Observers, nan: NanPolicy, name: str
    ) -> None:
        self._reducer = reducer
        self._buckets = buckets
        self._observers = observers
        self._nan: NanPolicy = nan
        self._thread = CommunicationThread(name)

    def send(self, step: OpenStep, bucket: Bucket, *, is_last: bool, done: Done | None = None) -> None:
        """Exchange a full bucket, after those sent before it; `done` is called on the completion thread."""
        self._observers.enqueued(bucket.index, bucket.layout.names)
        queued = time.perf_counter()
        step.num_sent += 1
        self._thread.submit(partial(self._begin, _Passage(step, bucket, is_last, done), queued))

    def fail(self, step: OpenStep, error: BaseException) -> None:
        """Record why a step failed, and wake up all threads that wait for it; may be called from any thread."""
        step.fail(self._observers.failed(step.record.step, error))

    def drain(self) -> None:
        """Wait until nothing is in flight."""
        self._thread.drain()

    def close(self) -> None:
        """End both threads."""
        self._thread.close()

    # On the communication thread.

    def _begin(self, passage: _Passage, queued: float) -> Callable[[], None]:
        rest = None
        with self._failing(passage.step):
            self._observers.phase("queue", passage.bucket.index, queued)
            if passage.step.error is None:
                rest = self._reduce(passage)
        return partial(self._complete, passage, rest)

    def _reduce(self, passage: _Passage) -> Callable[[], None] | None:
        step, bucket = passage.step, passage.bucket
        if step.agreement is None:
            with self._observers.timed("agree", WHOLE_STEP):
                step.agreement = self._reducer.agree(step.record)
        if step.agreement.syncs:
            self._reducer.sync_bucket(bucket, step.agreement)
        if step.screens:
            names = not_finite.screen(self._nan, bucket.layout, bucket.flat)
            step.found += names
            if names and self._nan != "zero":
                # All gradients of this step are overwritten below; no encoder may see values that are not finite.
                bucket.flat.zero_()
        rest = self._reducer.reduce_bucket(bucket, step)
        if passage.is_last and step.screens:
            found = self._reducer.tell_findings(step.found)
            record = step.record
            step.verdict = not_finite.verdict(self._nan, record.step, found, scaled=record.scaled)
        return rest

    # On the completion thread.

    def _complete(self, passage: _Passage, rest: Callable[[], None] | None) -> None:
        step, bucket = passage.step, passage.bucket
        with self._failing(step):
            if step.error is None:
                if rest is not None:
                    rest()
                _copy_back(step, bucket)
        step.arrivals[bucket.index].set()
        if passage.done is not None:
            step.held.append(passage.done)
            # Findings in a later bucket may change the gradients of this one.
            if not passage.is_last and not step.screens:
                step.release()
        if passage.is_last:
            step.complete = True
            with self._failing(step):
                self._settle(step)
            step.settled.set()
            step.release()

    def _settle(self, step: OpenStep) -> None:
        """Carry out the verdict, after all buckets have come back."""
        verdict, skipped = step.verdict, False
        if step.error is not None:
            return
        if verdict is not None:
            self._observers.note(verdict.note)
            if not verdict.goes_on:
                skipped = verdict.skips
                for bucket in self._buckets:
                    bucket.flat.fill_(verdict.fill)
                    _copy_back(step, bucket)
        self._reducer.settled(step, skipped=skipped)

    @contextlib.contextmanager
    def _failing(self, step: OpenStep) -> Generator[None]:
        """Fail the step with an error raised in this context; `wait` raises it again in the caller's thread."""
        try:
            yield
        except BaseException as error:
            self.fail(step, error)


def _copy_back(step: OpenStep, bucket: Bucket) -> None:
    if step.grads:
        with torch.no_grad():
            for name, view in bucket.views.items():
                if name in step.grads:
                    step.grads[name].copy_(view)


Job = Callable[[], Callable[[], None] | None]
"""Begins a transfer; returns the function that completes it, or None if it is complete already."""


class CommunicationThread:
    """Two threads: one begins every collective, one completes them, both in the order of submission.

    One thread begins all collectives of a process, so that their order is the same on every member, whichever thread
    found a bucket full. Another thread waits, so that several buckets are in flight. Jobs must not raise.
    """

    def __init__(self, name: str = "exchange") -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._rests: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # Daemon threads, because a member whose peers hang must still be able to exit.
        self._threads = [
            threading.Thread(target=self._begin, name=f"{name}-communication", daemon=True),
            threading.Thread(target=self._complete, name=f"{name}-completion", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        """Run `job` on the communication thread, and what it returns on the completion thread."""
        self._jobs.put(job)

    def drain(self) -> None:
        """Wait until everything that was submitted is complete; must not be called from one of the two threads."""
        idle = threading.Event()
        self._jobs.put(lambda: idle.set)
        idle.wait()

    def close(self) -> None:
        """Complete the submitted jobs and end the threads; may be called twice."""
        self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _begin(self) -> None:
        while (job := self._jobs.get()) is not None:
            rest = job()
            if rest is not None:
                self._rests.put(rest)
        self._rests.put(None)

    def _complete(self) -> None:
        while (rest := self._rests.get()) is not None:
            rest()
