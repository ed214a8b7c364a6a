"""`Executor`: concurrent.futures' interface to a pool whose workers may die and may run on other hosts.

What programs written for `ProcessPoolExecutor` see differently: a worker that dies
is replaced and its task is run again, until it has killed `max_deaths` workers; only
then its future, and no other, gets `TaskPoisoned` (which is a `BrokenProcessPool`).
Functions may be lambdas or live in `__main__`.
"""

from __future__ import annotations

import contextlib
import os
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
from ropewalk.pool.messages import CallKind
from ropewalk.pool.pool import Pool
from ropewalk.pool.results import PoolJob, RaisedEntry
from ropewalk.pool.status import PoolStatus, WorkerHandle
from ropewalk.processes.session import Session

P = ParamSpec("P")
T = TypeVar("T")

#: Calls that a worker is given at a time, which can be cancelled no more. More would be quicker for short ones, but how
#: long they take is only guessed. Ten thousand calls of abs() on two workers: 4 take 1.1 s, 16 take 0.5 s, 64 0.4 s.
_MOST_AHEAD = 16


class Executor(ProcessPoolExecutor):
    """A `concurrent.futures.Executor` whose workers are processes of an engine.

    It is a `ProcessPoolExecutor`, because libraries (adaptive, for one) ask for the class to find out how many workers
    there are; of that class nothing is used.

    Nothing is started before the first call is submitted. A program that ends without `shutdown` waits for what it
    submitted, as with the standard library.

    Example:
        >>> import ropewalk, math
        >>> with ropewalk.Executor(2) as executor:
        ...     executor.submit(math.factorial, 5).result()
        120

    Args:
        max_workers: how many workers; by default as `Pool` decides.
        mp_context: taken for the sake of programs that pass one. A context of `ropewalk.get_context` says the engine;
            of others nothing is used, as the engine decides how processes start.
        initializer: called in each worker before its first task; if it raises, the executor is broken.
        initargs: its arguments.
        max_tasks_per_child: a worker is replaced after so many calls (or chunks of `map`).
        engine: where workers run, such as "local"; the setting `engine` by default.
        session: a session to share; by default all pools of an engine share one.
        resources: what each worker needs.
        max_deaths: a call that has killed so many workers in a row fails with `TaskPoisoned`.
        task_timeout_s: a call that runs longer fails with `TaskTimeout`, and its worker is replaced.
        at_most_once: never start a call twice: one whose worker dies fails with `WorkerLost`.
        preload: modules that workers share from the start ("numpy"); they must not start threads.
        environment: variables for the workers, on top of those that this process has when they are started.
        name: shown in `status`, in output and in errors.

    Raises:
        ValueError: `max_workers` or `max_tasks_per_child` is below 1.
        TypeError: `initializer` cannot be called, or `max_tasks_per_child` is no int.
    """

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
        """Run `fn(*args, **kwargs)` in a worker; returns at once.

        The arguments are copied before this returns. What cannot be sent is told by the future.

        Raises:
            RuntimeError: after `shutdown`, or when the interpreter is ending.
            BrokenProcessPool: the initializer has raised, or the workers do not stay up.
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
        """The results of `map(fn, *iterables)`, in order, as they are there.

        The iterables are read to their end at once. Closing the iterator, or an error, cancels what has not begun.

        Args:
            fn: pickled once, with what it closes over.
            iterables: arguments of `fn`, one from each for a call.
            timeout: seconds from now after which the iterator raises `TimeoutError`.
            chunksize: how many calls are pickled together.

        Raises:
            ValueError: `chunksize` is below 1.
            RuntimeError: as of `submit`.
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
        """Take no more calls; the workers end when all is done. May be called twice.

        Args:
            wait: return when they have ended.
            cancel_futures: cancel what has not begun.
        """
        with self._lock:
            self._closed = True
            pool = self._pool
        if pool is None:
            return
        if cancel_futures:
            for job in pool.waiting_jobs():
                job.cancel()  # type: ignore[attr-defined]  # this pool has no jobs but ours
        if wait:
            _finish(pool)
        else:
            _finish_later(pool)

    def terminate_workers(self) -> None:
        """End the workers at once: calls that run fail with `TaskCancelled`, the rest is cancelled.

        May be called twice. (The standard library's executor has this from Python 3.14 on.)
        """
        self.shutdown(wait=False, cancel_futures=True)
        if self._pool:
            self._pool.terminate()

    kill_workers = terminate_workers
    """As `terminate_workers`, which leaves nothing alive either. (The standard library's has both.)"""

    def status(self) -> PoolStatus | None:
        """What the executor is doing, as `Pool.status` shows it; None before its first call."""
        return self._pool.status() if self._pool else None

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> bool | None:
        if exc_type and issubclass(exc_type, KeyboardInterrupt):
            # Ctrl-C in a terminal reaches a standard executor's workers as well, and what they run ends with it.
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
        if pool and not self._closed:  # what was submitted is run, as in the standard library
            _finish_later(pool)

    # What libraries look at

    @property
    def _max_workers(self) -> int:
        return self._wanted or (self._pool.num_workers if self._pool else usable_cpus())

    @property
    def _processes(self) -> dict[int, WorkerHandle]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The workers by process id; none before the first call and after the end, as in the standard library."""
        if self._pool is None:
            return {}
        # One that has done all it may, and only ends, is none of the standard library's either.
        staying = self._pool._dispatcher.worker_ids(ending=False)  # pyright: ignore[reportPrivateUsage]
        handles = self._pool._pool  # pyright: ignore[reportPrivateUsage]
        return {handle.pid: handle for handle in handles if handle.name in staying}

    # For those who keep executors

    @property
    def has_started(self) -> bool:
        """Whether it has workers, which come with its first call."""
        return self._pool is not None

    @property
    def is_usable(self) -> bool:
        """Whether calls can be submitted: it was not shut down, and what it runs on is there."""
        return not self._closed and (self._pool is None or self._pool.is_usable)

    def call_later(self, seconds: float, call: Callable[[], object]) -> None:
        """Call something after so long, if the session in which the executor was started is still there then."""
        assert self._pool
        loop = self._pool.session.loop
        loop.call_soon(lambda: loop.call_later(seconds, call))

    def when_session_closed(self, call: Callable[[], object]) -> None:
        """Call something when the session has ended in which the executor was started."""
        assert self._pool
        self._pool.session.when_closed(call)

    # Inside

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
        except PoolClosed as error:  # while this ran; or we are a forked child, which the error explains
            raise RuntimeError(f"cannot schedule new futures after shutdown: {error}") from error
        except Exception as error:
            raise as_futures_name_it(error) from error.__cause__


# Pools of executors, from their start to their end; each with a lock for whoever waits for that end.

_pools: dict[Pool, threading.Lock] = {}
_exiting = False
_hooked = False


def _open(make_pool: Callable[[], Pool]) -> Pool:
    global _hooked
    if not _hooked:
        # Before the exit handlers, by one of which sessions end. The standard library's executors use it as well.
        threading._register_atexit(_finish_all)  # type: ignore[attr-defined]
        _hooked = True
    pool = make_pool()
    # The thread of callbacks begins here: at the interpreter's exit, where results come too, Python 3.12 starts none.
    pool._call_back(_nothing)  # pyright: ignore[reportPrivateUsage]
    pool._limit_ahead(_MOST_AHEAD)  # pyright: ignore[reportPrivateUsage]
    _pools[pool] = threading.Lock()
    return pool


def _nothing() -> None:
    pass


def _finish(pool: Pool) -> None:
    """Let a pool run what it has and end, and wait for that; also if somebody else waits for it already."""
    ending = _pools.get(pool)
    if ending is not None:
        with ending:
            pool.close()
            pool.join()
            _pools.pop(pool, None)


def _finish_later(pool: Pool) -> None:
    if pool in _pools:
        with contextlib.suppress(RuntimeError):  # the interpreter is ending: `_finish_all` does it
            threading.Thread(target=_finish, args=(pool,), name=f"{pool.name}-shutdown", daemon=True).start()


def _finish_all() -> None:
    """The program ends: run what was submitted."""
    global _exiting
    _exiting = True
    for pool in list(_pools):
        try:
            _finish(pool)
        except BaseException:  # Ctrl-C: it shall end now
            pool.terminate()
            raise


#: In a forked child, the pools are the parent's.
os.register_at_fork(after_in_child=_pools.clear)
