"""The threads that read the iterables of `imap`: user code in an iterable may block, and may depend on results.

iterable ─▶ feeder ─ while the job has room ─▶ units ─▶ dispatcher
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ropewalk.errors import PoolClosed, TaskCancelled
from ropewalk.pool.chunking import check_chunksize, chunks
from ropewalk.pool.dispatcher import Dispatcher
from ropewalk.pool.imap_results import IMapIterator, ImapJob
from ropewalk.pool.job_submitter import JobPackage, JobSubmitter
from ropewalk.pool.messages import CallKind
from ropewalk.transport.loop import Loop

T = TypeVar("T")

_WINDOW_BYTES = 32 << 20
"""Bytes of unconsumed results of one `imap` before it stops reading its iterable."""
_WINDOW_ITEMS = 4096


class ImapFeeders:
    """The feeders of one pool, each a thread with the job that it feeds.

    Args:
        name: the pool's name.
        dispatcher: the pool's dispatcher.
        submitter: packs the items.
        loop: the loop of the pool's session.
    """

    def __init__(self, name: str, dispatcher: Dispatcher, submitter: JobSubmitter, loop: Loop) -> None:
        self._name = name
        self._dispatcher = dispatcher
        self._submitter = submitter
        self._loop = loop
        self._feeding: dict[threading.Thread, ImapJob] = {}
        """A thread removes itself when it ends, whatever other threads do with the table."""

    def start(
        self,
        func: Callable[..., T],
        iterable: Iterable[Any],
        chunksize: int,
        seed: int | None,
        ended: Callable[[], object],
        *,
        ordered: bool,
    ) -> IMapIterator[T]:
        """Read an iterable in a thread of its own, and submit its items; see `Pool.imap`.

        Args:
            func: the function.
            iterable: the items.
            chunksize: the number of items in a unit.
            seed: the seed of the tasks; None: the number of the job.
            ended: called in the thread after the last item.
            ordered: whether results come in the order of their items.
        """
        check_chunksize(chunksize)
        num_workers = self._dispatcher.most_workers
        window = max(_WINDOW_ITEMS, 2 * num_workers * chunksize)
        job = ImapJob(num_workers * chunksize, window, _WINDOW_BYTES, ordered=ordered)
        package = self._submitter.package(job, func, CallKind.ONE, seed)

        def feed() -> None:
            self._feed(job, package, iterable, chunksize)
            self._feeding.pop(threading.current_thread(), None)
            ended()

        feeder = threading.Thread(target=feed, name=f"{self._name}-imap", daemon=True)
        self._feeding[feeder] = job
        try:
            feeder.start()
        except BaseException:
            if not feeder.is_alive():
                self._feeding.pop(feeder, None)
                package.close()
            raise
        # The iterator may be dropped by the garbage collector anywhere, even while this thread holds the pool's lock:
        # act in the loop.
        loop, dispatcher = self._loop, self._dispatcher
        error = TaskCancelled("the iterator of this imap was dropped")

        def on_dropped() -> None:
            loop.call_soon(lambda: (job.drop(), dispatcher.cancel(job, error)))

        return IMapIterator(job, on_dropped)

    @property
    def are_feeding(self) -> bool:
        """Whether any feeder but the one that asks is at work."""
        current = threading.current_thread()
        return any(feeder is not current and feeder.is_alive() for feeder in list(self._feeding))

    def drop_all(self) -> None:
        """Read no more: the pool is terminated."""
        for job in list(self._feeding.values()):
            job.drop()

    def finish(self) -> None:
        """Read all iterables to their ends, and wait for that."""
        feeding = dict(self._feeding)
        for job in feeding.values():
            job.lift_window()
        for feeder in feeding:
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
