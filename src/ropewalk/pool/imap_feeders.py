"""The threads that read the iterables of `imap`: user code in an iterable may block, and may depend on results.

iterable ─▶ feeder ─ while the job has room ─▶ units ─▶ dispatcher
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from ropewalk.errors import PoolClosed, TaskCancelled
from ropewalk.pool.chunking import chunks
from ropewalk.pool.dispatcher import Dispatcher
from ropewalk.pool.imap_results import ImapJob
from ropewalk.pool.job_submitter import JobPackage


class ImapFeeders:
    """The feeders of one pool, each a thread with the job that it feeds.

    Args:
        name: the pool's name.
        dispatcher: the pool's dispatcher.
    """

    def __init__(self, name: str, dispatcher: Dispatcher) -> None:
        self._name = name
        self._dispatcher = dispatcher
        self._threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._jobs: weakref.WeakSet[ImapJob] = weakref.WeakSet()

    def start(
        self, job: ImapJob, package: JobPackage, iterable: Iterable[Any], chunksize: int, ended: Callable[[], object]
    ) -> None:
        """Read an iterable in a thread of its own, and submit its items.

        Args:
            job: says whether more items are wanted, and is told of the end.
            package: packs the items; closed at the end.
            iterable: the items.
            chunksize: the number of items in a unit.
            ended: called in the thread after the last item.
        """

        def feed() -> None:
            self._feed(job, package, iterable, chunksize)
            self._threads.discard(threading.current_thread())
            ended()

        feeder = threading.Thread(target=feed, name=f"{self._name}-imap", daemon=True)
        self._jobs.add(job)
        self._threads.add(feeder)
        feeder.start()

    @property
    def are_feeding(self) -> bool:
        """Whether any feeder but the one that asks is at work."""
        current = threading.current_thread()
        return any(feeder is not current and feeder.is_alive() for feeder in list(self._threads))

    def drop_all(self) -> None:
        """Read no more: the pool is terminated."""
        for job in list(self._jobs):
            job.drop()

    def finish(self) -> None:
        """Read all iterables to their ends, and wait for that."""
        for job in list(self._jobs):
            job.lift_window()
        for feeder in list(self._threads):
            feeder.join()

    def _feed(self, job: ImapJob, package: JobPackage, iterable: Iterable[Any], chunksize: int) -> None:
        problem: BaseException | None = None
        try:
            _submit_all(job, package, iterable, chunksize)
        except PoolClosed:
            terminated = TaskCancelled(f"{self._name} was terminated while the iterable was read")
            problem = self._dispatcher.broken or terminated
        except BaseException as error:
            problem = error
        if job.dropped:  # a consumer that still waits must be told, even if an item was read and not submitted
            job.abandon(problem or TaskCancelled(f"{self._name} was terminated, or the iterator dropped"))
        else:
            job.end(problem)
        package.close()


def _submit_all(job: ImapJob, package: JobPackage, iterable: Iterable[Any], chunksize: int) -> None:
    waiting = chunks(iterable, chunksize)
    while job.wait_for_room() and (chunk := next(waiting, None)) is not None:
        first = job.sent(len(chunk))
        try:
            package.submit(chunk, first)
        except BaseException:
            job.sent(-len(chunk))
            raise
