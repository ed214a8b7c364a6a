"""`Executor`: the interface of `concurrent.futures` to a pool whose workers may die and may run on other hosts.

Programs written for `ProcessPoolExecutor` see these differences: a worker that dies is replaced and its task is run
again, until the task has killed `max_deaths` workers; then its future, and no other, gets `TaskPoisoned` (which is a
`BrokenProcessPool`). Functions may be lambdas or be defined in `__main__`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from ropewalk.compat.broken_executor import as_futures_name_it
from ropewalk.compat.task_futures import MapJob, TaskFuture
from ropewalk.engines.resources import Resources, usable_cpus
from ropewalk.errors import NotPicklable, PoolClosed
from ropewalk.misplaced_options import OF_RESOURCES, tells_places
from ropewalk.pool.messages import CallKind
from ropewalk.pool.pool import Pool
from ropewalk.pool.result_batch import RaisedEntry
from ropewalk.pool.results import PoolJob
from ropewalk.pool.status import PoolStatus, WorkerHandle
from ropewalk.processes.session import Session
from ropewalk.user_frames import user_frames_only

P = ParamSpec("P")
T = TypeVar("T")

_MOST_AHEAD = 16
"""Maximum number of calls that are sent to a worker at a time, and can then no longer be cancelled. A higher limit
would be faster for short calls, but their duration is only estimated. Ten thousand calls of abs() on two workers
take 1.1 s with a limit of 4, 0.5 s with 16 and 0.4 s with 64."""


class Executor(ProcessPoolExecutor):
    """A `concurrent.futures.Executor` whose workers are processes of an engine.

    It is a subclass of `ProcessPoolExecutor` only because libraries (adaptive, for one) check for that class to find
    out the number of workers; nothing of the base class is used.

    No worker is started before the first call is submitted. A program that ends without `shutdown` waits for the
    submitted calls, as with the standard library.

    Example:
        >>> import ropewalk, math
        >>> with ropewalk.Executor(2) as executor:
        ...     executor.submit(math.factorial, 5).result()
        120

    Args:
        max_workers: number of workers; the default is that of `Pool`.
        mp_context: accepted for compatibility. A context from `ropewalk.get_context` selects the engine; any other
            context is ignored, because the engine decides how processes start.
        initializer: called in each worker before its first task; if it raises, the executor is broken.
        initargs: arguments of `initializer`.
        max_tasks_per_child: number of calls (or chunks of `map`) after which a worker is replaced.
        engine: name of the engine that runs the workers, such as "local"; defaults to the setting `engine`.
        session: a session to share; by default all pools of an engine share one.
        resources: resources of each worker.
        max_deaths: a call that has killed this number of workers in a row fails with `TaskPoisoned`.
        task_timeout_s: timeout of each call in seconds; a call that runs longer fails with `TaskTimeout`, and its
            worker is replaced.
        at_most_once: never start a call twice; a call whose worker dies fails with `WorkerLost`.
        preload: modules that workers share from the start ("numpy"); they must not start threads.
        environment: environment variables for the workers, in addition to those of this process when they start.
        name: name of the executor in `status`, in output and in errors.

    Raises:
        ValueError: `max_workers` or `max_tasks_per_child` is below 1.
        TypeError: `max_workers` or `max_tasks_per_child` is not an int, or `initializer` cannot be called.
    """

    @user_frames_only
    @tells_places(OF_RESOURCES)
    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: Any = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        *,
        max_tasks_per_child: int | None = None,
        engine: str | None = None,
        session: Session | None = None,
        resources: Resources | None = None,
        max_deaths: int = 3,
        task_timeout_s: float | None = None,
        at_most_once: bool = False,
        preload: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> None:
        self._pool: Pool | None = None
        self._closed = False
        if max_workers is not None and not hasattr(max_workers, "__index__"):
            raise TypeError(f"max_workers must be a whole number, not {max_workers!r}")
        if max_workers is not None and max_workers <= 0:
            raise ValueError(f"max_workers must be greater than 0, not {max_workers}")
        if initializer is not None and not callable(initializer):
            raise TypeError(f"initializer must be a callable, not {initializer!r}")
        if max_tasks_per_child is not None:
            if not isinstance(max_tasks_per_child, int):
                raise TypeError(f"max_tasks_per_child must be an integer, not {max_tasks_per_child!r}")
            if max_tasks_per_child <= 0:
                raise ValueError(f"max_tasks_per_child must be >= 1, not {max_tasks_per_child}")
        self._lock = threading.Lock()
        self._wanted = max_workers
        self._make_pool = partial(
            Pool,
            max_workers,
            initializer,
            tuple(initargs),
            max_tasks_per_child,
            engine=engine or getattr(mp_context, "engine", None),
            session=session,
            resources=resources,
            max_deaths=max_deaths,
            task_timeout_s=task_timeout_s,
            at_most_once=at_most_once,
            preload=preload,
            environment=environment,
            name=name,
        )

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn(*args, **kwargs)` in a worker, and return its future immediately.

        The arguments are copied before this returns. If an argument cannot be pickled, the future fails.

        Raises:
            RuntimeError: after `shutdown`, or when the interpreter is ending.
            BrokenProcessPool: the initializer has raised, or the workers keep dying.
        """
        pool = self._started()
        future: TaskFuture[T] = TaskFuture(pool)
        kind = CallKind.EXECUTOR_APPLY if kwargs else CallKind.EXECUTOR_PLAIN
        try:
            self._start(pool, future, fn, [((args, kwargs) if kwargs else args,)], kind)
        except NotPicklable as error:
            future.end(RaisedEntry(error))
        return future

    def map(
        self, fn: Callable[..., T], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[T]:
        """Yield the results of `map(fn, *iterables)` in order, as they arrive.

        The iterables are consumed immediately. Closing the iterator, or an error, cancels the calls that have not
        begun.

        Args:
            fn: the function; it is pickled once, with its closure.
            iterables: arguments of `fn`; each call takes one from each iterable.
            timeout: seconds from now after which the iterator raises `TimeoutError`; None waits for ever.
            chunksize: number of calls that are pickled together.

        Raises:
            ValueError: `chunksize` is below 1.
            RuntimeError: as in `submit`.
        """
        if chunksize < 1:
            raise ValueError(f"chunksize must be >= 1, not {chunksize}")
        deadline = None if timeout is None else time.monotonic() + timeout
        pool = self._started()
        calls = list(zip(*iterables, strict=False))
        job = MapJob(pool, len(calls))
        cut = (tuple(calls[at : at + chunksize]) for at in range(0, len(calls), chunksize))
        try:
            self._start(pool, job, fn, cut, CallKind.EXECUTOR_STAR)
        except NotPicklable as error:
            job.abandon(error)
        return job.results(deadline)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls; the workers end after the last submitted call. May be called twice.

        Args:
            wait: whether to wait until the workers have ended.
            cancel_futures: whether to cancel the calls that have not begun.
        """
        with self._lock:
            self._closed = True
            pool = self._pool
        if pool is None:
            return
        if cancel_futures:
            for job in pool.waiting_jobs():
                job.cancel()  # type: ignore[attr-defined]  # this pool only has jobs of the executor
        if not wait:
            _finish_later(pool)
            return
        try:
            _finish(pool)
        except KeyboardInterrupt:  # as in `__exit__`
            pool.terminate()
            raise

    def terminate_workers(self) -> None:
        """Stop the workers immediately: running calls fail with `TaskCancelled`, the other calls are cancelled.

        May be called twice. (The standard library's executor has this from Python 3.14 on.)
        """
        self.shutdown(wait=False, cancel_futures=True)
        if self._pool:
            self._pool.terminate()

    kill_workers = terminate_workers
    """The same as `terminate_workers`, which already leaves no process alive. (The standard library has both.)"""

    def status(self) -> PoolStatus | None:
        """Return the state of the executor as `Pool.status` does; None before its first call."""
        return self._pool.status() if self._pool else None

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> bool | None:
        if exc_type and issubclass(exc_type, KeyboardInterrupt):
            # Ctrl-C in a terminal also reaches the workers of a standard executor, and ends the calls they run.
            self.terminate_workers()
        self.shutdown(wait=True)
        return False

    def __repr__(self) -> str:
        state = "shut down" if self._closed else "running" if self._pool else "not started"
        return f"<ropewalk.Executor {self._pool.name if self._pool else 'of a pool'} {state}>"

    def __reduce__(self) -> Any:
        raise NotImplementedError(
            "an executor cannot be sent to another process; make one inside the task (it joins the same session)"
        )

    def __del__(self) -> None:
        pool = getattr(self, "_pool", None)
        if pool and not self._closed:  # submitted calls still run, as in the standard library
            _finish_later(pool)

    # Attributes that libraries inspect

    @property
    def _max_workers(self) -> int:
        return self._wanted or (self._pool.num_workers if self._pool else usable_cpus())

    @property
    def _processes(self) -> dict[int, WorkerHandle]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The workers by process id; empty before the first call and after the end, as in the standard library."""
        if self._pool is None:
            return {}
        # A worker that has reached its limit of tasks and is ending is not listed, as in the standard library.
        present = self._pool._dispatcher.present(ending=False)  # pyright: ignore[reportPrivateUsage]
        staying = {worker.id for worker in present}
        handles = self._pool._pool  # pyright: ignore[reportPrivateUsage]
        return {handle.pid: handle for handle in handles if handle.name in staying}

    # For code that keeps executors for reuse

    @property
    def has_started(self) -> bool:
        """Whether the executor has workers; its first call starts them."""
        return self._pool is not None

    @property
    def is_usable(self) -> bool:
        """Whether calls can be submitted: the executor was not shut down, and its pool and session are alive."""
        return not self._closed and (self._pool is None or self._pool.is_usable)

    def call_later(self, seconds: float, call: Callable[[], object]) -> None:
        """Run `call` after `seconds`, if the session in which the executor was started is still open then."""
        assert self._pool
        loop = self._pool.session.loop
        loop.call_soon(lambda: loop.call_later(seconds, call))

    def when_session_closed(self, call: Callable[[], object]) -> None:
        """Run `call` when the session in which the executor was started has closed."""
        assert self._pool
        self._pool.session.when_closed(call)

    # Private

    def _started(self) -> Pool:
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if _exiting:
                raise RuntimeError("cannot schedule new futures after interpreter shutdown")
            if self._pool is None:
                try:
                    self._pool = _open(self._make_pool)
                except Exception as error:
                    raise as_futures_name_it(error) from error.__cause__
            return self._pool

    def _start(self, pool: Pool, job: PoolJob, fn: Callable[..., Any], cut: Iterable[Sequence[Any]], kind: int) -> None:
        try:
            pool.start_job(job, fn, cut, kind)
        except PoolClosed as error:  # closed during this call, or this is a forked child, which the error explains
            raise RuntimeError(f"cannot schedule new futures after shutdown: {error}") from error
        except Exception as error:
            raise as_futures_name_it(error) from error.__cause__


# Pools of executors, from their start to their end; each has a lock for the thread that waits for that end.

_pools: dict[Pool, threading.Lock] = {}
_exiting = False
_hooked = False


def _open(make_pool: Callable[[], Pool]) -> Pool:
    global _hooked
    if not _hooked:
        # It runs before the exit handlers, one of which closes sessions. The standard library's executors use it, too.
        threading._register_atexit(_finish_all)  # type: ignore[attr-defined]
        _hooked = True
    pool = make_pool()
    # This starts the callback thread: results also arrive at interpreter exit, when Python 3.12 starts no threads.
    pool._call_back(_nothing)  # pyright: ignore[reportPrivateUsage]
    pool._limit_ahead(_MOST_AHEAD)  # pyright: ignore[reportPrivateUsage]
    _pools[pool] = threading.Lock()
    return pool


def _nothing() -> None:
    pass


def _finish(pool: Pool) -> None:
    """Let a pool finish its jobs and end, and wait for that, even if another thread already waits for it."""
    ending = _pools.get(pool)
    if ending is not None:
        with ending:
            pool.close()
            pool.join()
            _pools.pop(pool, None)


def _finish_later(pool: Pool) -> None:
    if pool in _pools:
        with contextlib.suppress(RuntimeError):  # the interpreter is ending, and `_finish_all` does this
            threading.Thread(target=_finish, args=(pool,), name=f"{pool.name}-shutdown", daemon=True).start()


def _finish_all() -> None:
    """Run the submitted calls at the end of the program."""
    global _exiting
    _exiting = True
    is_interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1")
    for pool in list(_pools):
        try:
            if is_interrupted:  # the calls of a standard executor have been interrupted, too
                pool.terminate()
            _finish(pool)
        except BaseException:  # Ctrl-C: stop immediately
            pool.terminate()
            raise


# In a forked child, the pools belong to the parent.
os.register_at_fork(after_in_child=_pools.clear)
