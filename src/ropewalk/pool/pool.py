"""`Pool`: multiprocessing's pool over worker processes that may run on a cluster and may die.

    caller's thread                     session's loop                    worker
    map ─▶ chunking ─▶ pickle ─▶ submit ─▶ task table ─▶ dispatcher ═══▶ run
    get ◀─ unpickle ◀─────────── job ◀──── task table ◀─ dispatcher ◀═══ results

Everything that `multiprocessing.Pool` has behaves as documented there. Beyond that, no task is lost or answered twice
when workers die (`max_deaths`, `at_most_once`, `task_timeout_s`), functions may be lambdas or live in `__main__`,
`imap` is lazy, pools can grow and shrink with their work, results can be awaited, and there are `put`, `resize` and
`status`.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import time
import warnings
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ropewalk import interpreter_ahead
from ropewalk.errors import PoolClosed, TaskCancelled
from ropewalk.escaping import escaped
from ropewalk.misplaced_options import OF_RESOURCES, tells_places
from ropewalk.pool import parts
from ropewalk.pool.pool_arguments import PoolSize, check_worker_arguments
from ropewalk.processes.interrupts import interrupts_deferred
from ropewalk.user_frames import user_frames_only

if TYPE_CHECKING:
    from ropewalk.control.server import ControlServer
    from ropewalk.control.view import View
    from ropewalk.engines.resources import Resources
    from ropewalk.pool.constants import Constant, ConstantRef
    from ropewalk.pool.dispatcher import Dispatcher
    from ropewalk.pool.imap_results import IMapIterator
    from ropewalk.pool.job_submitter import JobSubmitter
    from ropewalk.pool.results import AsyncResult, MapResult, PoolJob
    from ropewalk.pool.status import PoolStatus, WorkerHandle
    from ropewalk.processes.session import Session

S = TypeVar("S")
T = TypeVar("T")

RUN, CLOSE, TERMINATE = "RUN", "CLOSE", "TERMINATE"

_ANNOUNCED_AFTER_S = 0.2
"""Many pools live for a few milliseconds, and would be gone before anybody can look."""
_pool_numbers = itertools.count(1)


class Pool:
    """A pool of worker processes, with the interface of `multiprocessing.Pool`.

    Example:
        >>> import ropewalk, math
        >>> with ropewalk.Pool(2) as pool:
        ...     pool.map(math.factorial, range(5))
        [1, 1, 2, 6, 24]

    Args:
        processes: the number of workers; by default `ROPEWALK_WORKERS`, otherwise the number of CPUs that this process
            may use (inside a worker, the CPUs of that worker). For an elastic pool, the number of workers at the start;
            by default `min_processes`.
        initializer: called in each worker before its first task.
        initargs: the arguments of `initializer`.
        maxtasksperchild: the number of chunks of tasks after which a worker is replaced; by default workers are kept.
        context: a context from `ropewalk.get_context`, whose session the pool joins; a context of multiprocessing
            changes nothing, as the engine decides how processes start.
        engine: where the workers run, such as "local"; by default the setting `engine`.
        session: the session to use; by default all pools of an engine share one.
        resources: what each worker needs; its CPUs are also the number of threads of numerical libraries in the worker,
            unless a variable such as OMP_NUM_THREADS sets another number. A function whose `ropewalk.requires` asks for
            more is refused.
        max_deaths: the number of workers that a task may kill in a row before it fails with `TaskPoisoned`.
        task_timeout_s: seconds; a task that runs longer fails with `TaskTimeout`, and its worker is replaced. None sets
            no limit.
        at_most_once: never start a task twice: a task whose worker dies fails with `WorkerLost`.
        min_processes: the smallest number of workers, to which the pool shrinks after `idle_s` with less work; by
            default `processes`, or 1 if that is not given.
        max_processes: the largest number of workers, to which the pool grows when work waits; by default `processes`,
            or the number of CPUs. A pool with neither `min_processes` nor `max_processes` changes its size by `resize`
            only. On a cluster an elastic pool asks for whole agents, and gives them back when none of their workers is
            needed.
        idle_s: seconds for which an elastic pool must have less work before it shrinks.
        preload: names of modules that the workers share from the start, such as "numpy"; the modules must not start
            threads.
        environment: variables for the workers, on top of those that this process has when the workers start; on other
            hosts, and in steps of an allocation, on top of those of the host.
        name: shown in `status`, in output and in errors; control characters are shown escaped.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of its range.
        NotPicklable: the initializer or its arguments cannot be sent.
        StartFailed: no worker can be started with this engine.
    """

    @user_frames_only
    @tells_places(OF_RESOURCES)
    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
        *,
        engine: str | None = None,
        session: Session | None = None,
        resources: Resources | None = None,
        max_deaths: int = 3,
        task_timeout_s: float | None = None,
        at_most_once: bool = False,
        min_processes: int | None = None,
        max_processes: int | None = None,
        idle_s: float = 10.0,
        preload: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> None:
        self._state = TERMINATE  # until it runs
        self._control: ControlServer | None = None
        check_worker_arguments(initializer, maxtasksperchild, max_deaths, task_timeout_s, preload, environment, name)
        if resources is not None:
            parts.check_resources(resources)
        if session is not None and not hasattr(session, "lease"):
            raise TypeError(f"session is of type {type(session).__name__}; give ropewalk.Session()")
        size = PoolSize.of(processes, min_processes, max_processes, idle_s)
        if session is None and context is None:
            interpreter_ahead.begin(engine)
        self._session = parts.leased(session or (None if engine else parts.session_of(context)), engine=engine)
        outside = parts.bootstrap.current
        outer = f"{outside.name}/" if outside else ""  # a pool inside a worker is named after it
        self.name: str = escaped(name) if name else f"{outer}pool-{next(_pool_numbers)}"
        self._pid = os.getpid()
        self._callbacks = parts.Callbacks()
        with self._released_on_error():
            num_workers, elasticity = size.start(self._session.default_size)
            process = parts.ProcessSpec(
                group=self.name,
                rank=0,
                entry="ropewalk.pool.worker:main",
                codec=parts.POOL,
                resources=resources or parts.default_resources(self._session.settings),
                preload=tuple(preload),
                environment=dict(environment or {}),
                task_limit_s=task_timeout_s,
            )
            options = parts.WorkerOptions(
                process=process,
                initializer=_constant(initializer, "initializer") if initializer else None,
                arguments=_constant(tuple(initargs), "initargs") if initializer else None,
                units_per_worker=maxtasksperchild,
                max_deaths=max_deaths,
                at_most_once=at_most_once,
                output=self._session.output_group(next(parts.owner_numbers), self.name),
            )
        with interrupts_deferred:
            with self._released_on_error():
                self._dispatcher = parts.Dispatcher(self._session, options, num_workers, elasticity)
                self._submitter = parts.JobSubmitter(
                    self._dispatcher, process.resources, self._callbacks.put, self._session.loop
                )
                self._feeders = parts.ImapFeeders(self.name, self._dispatcher, self._submitter, self._session.loop)
            self._released = False
            self._state = RUN
        self._target = parts.PoolTarget(self, self._dispatcher, self._session)
        self._announce()

    @contextlib.contextmanager
    def _released_on_error(self) -> Generator[None]:
        try:
            yield
        except BaseException:
            self._session.release()
            raise

    # One call

    @user_frames_only
    def apply(self, func: Callable[..., T], args: Iterable[Any] = (), kwds: Mapping[str, Any] | None = None) -> T:
        """Run `func(*args, **kwds)` in a worker and return its value.

        Args:
            func: the function; a lambda, a closure or a function of `__main__` works too.
            args: its positional arguments.
            kwds: its keyword arguments.

        Returns:
            What the call returned.

        Raises:
            Exception: what the call raised, with the remote traceback as its cause.
        """
        return self._wait(lambda: self.apply_async(func, args, kwds))

    def apply_async(
        self,
        func: Callable[..., T],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: Callable[[T], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
        *,
        seed: int | None = None,
        avoids: Collection[str] = (),
    ) -> AsyncResult[T]:
        """Start `func(*args, **kwds)` in a worker, and return at once.

        Args:
            func: the function; a lambda, a closure or a function of `__main__` works too.
            args: its positional arguments, copied before this returns.
            kwds: its keyword arguments.
            callback: called with the value when it has arrived, in a thread of the pool.
            error_callback: called with the exception instead, if the call raises.
            seed: the number from which `task_seed` is derived; by default the number of this call in the pool.
            avoids: hosts whose workers do not get the call; it waits for a worker of another host.

        Returns:
            The result of the call, which arrives later.
        """
        return self._open_submitter().call(func, args, kwds, callback, error_callback, seed, avoids)

    # Many calls

    @user_frames_only
    def map(
        self,
        func: Callable[[S], T],
        iterable: Iterable[S | ConstantRef],
        chunksize: int | None = None,
        *,
        seed: int | None = None,
    ) -> list[T]:
        """Return `[func(item) for item in iterable]`, computed by the workers.

        Args:
            func: the function; pickled once, with what it closes over.
            iterable: the arguments; read to the end at once.
            chunksize: the number of items that are pickled together; by default such that each worker gets about four
                chunks.
            seed: the number from which `task_seed` is derived; by default the number of this call in the pool.

        Returns:
            The results in the order of the items.

        Raises:
            Exception: what the call with the lowest index raised, once all calls have ended.
        """
        return self._wait(lambda: self.map_async(func, iterable, chunksize, seed=seed))

    def map_async(
        self,
        func: Callable[[S], T],
        iterable: Iterable[S | ConstantRef],
        chunksize: int | None = None,
        callback: Callable[[list[T]], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
        *,
        seed: int | None = None,
    ) -> MapResult[T]:
        """Start `map`, and return at once.

        Args:
            func: the function; pickled once, with what it closes over.
            iterable: the arguments; read to the end at once.
            chunksize: the number of items that are pickled together; by default such that each worker gets about four
                chunks.
            callback: called with the list of results when all have arrived, in a thread of the pool.
            error_callback: called with an exception instead, if a call raises.
            seed: the number from which `task_seed` is derived; by default the number of this call in the pool.

        Returns:
            The result, a list in the order of the items, which arrives later.
        """
        return self._open_submitter().map(func, iterable, chunksize, callback, error_callback, seed, star=False)

    @user_frames_only
    def starmap(
        self,
        func: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        *,
        seed: int | None = None,
    ) -> list[T]:
        """Return `[func(*item) for item in iterable]`, computed by the workers.

        Args:
            func: the function; pickled once, with what it closes over.
            iterable: the positional arguments of each call; read to the end at once.
            chunksize: the number of items that are pickled together; by default such that each worker gets about four
                chunks.
            seed: the number from which `task_seed` is derived; by default the number of this call in the pool.

        Returns:
            The results in the order of the items.

        Raises:
            Exception: what the call with the lowest index raised, once all calls have ended.
        """
        return self._wait(lambda: self.starmap_async(func, iterable, chunksize, seed=seed))

    def starmap_async(
        self,
        func: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callable[[list[T]], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
        *,
        seed: int | None = None,
    ) -> MapResult[T]:
        """Start `starmap`, and return at once.

        Args:
            func: the function; pickled once, with what it closes over.
            iterable: the positional arguments of each call; read to the end at once.
            chunksize: the number of items that are pickled together; by default such that each worker gets about four
                chunks.
            callback: called with the list of results when all have arrived, in a thread of the pool.
            error_callback: called with an exception instead, if a call raises.
            seed: the number from which `task_seed` is derived; by default the number of this call in the pool.

        Returns:
            The result, a list in the order of the items, which arrives later.
        """
        return self._open_submitter().map(func, iterable, chunksize, callback, error_callback, seed, star=True)

    def imap(
        self,
        func: Callable[[S], T],
        iterable: Iterable[S | ConstantRef],
        chunksize: int = 1,
        *,
        seed: int | None = None,
    ) -> IMapIterator[T]:
        """Return an iterator over the results of `map`, in the order of the items.

        The iterable is read as results are consumed, and may be endless. The number and the bytes of unconsumed results
        are bounded; `join` after `close` lifts the bound. Dropping the iterator cancels the tasks that have not
        started.

        Args:
            func: the function; pickled once, with what it closes over.
            iterable: the arguments; read in a thread of the pool.
            chunksize: the number of items that are pickled together.
            seed: the number from which `task_seed` is derived; by default the number of this call in the pool.

        Returns:
            An iterator over the results; its `next` raises what a task or the iterable raised.
        """
        return self._imap(func, iterable, chunksize, seed, ordered=True)

    def imap_unordered(
        self,
        func: Callable[[S], T],
        iterable: Iterable[S | ConstantRef],
        chunksize: int = 1,
        *,
        seed: int | None = None,
    ) -> IMapIterator[T]:
        """Return an iterator over the results in the order in which they are ready; see `imap` for the arguments."""
        return self._imap(func, iterable, chunksize, seed, ordered=False)

    def put(self, value: Any) -> ConstantRef:
        """Send a value to every host once, and return a reference; a task that is passed the reference gets the value.

        In the task, the value is read-only memory that all processes of the host share. (A value that a function closes
        over, as in `functools.partial(f, weights)`, is sent this way without `put`.) The value is kept for as long as
        the reference exists, and until every task that was given it has ended.

        Args:
            value: any object that can be pickled.

        Returns:
            The reference to pass to tasks.

        Raises:
            NotPicklable: a part of the value cannot be sent.
        """
        return self._open_submitter().put(value)

    # The pool itself

    def resize(self, processes: int) -> None:
        """Change the number of workers. New workers get work at once; surplus ones end after the task they are in.

        An elastic pool goes on growing and shrinking with its work, starting from the new size. On a cluster, workers
        of the agent that has the fewest end first, so that whole agents are given back.

        Args:
            processes: the number of workers from now on.

        Raises:
            ValueError: `processes` is below 1, or outside of `min_processes` and `max_processes`.
        """
        if operator.index(processes) < 1:
            raise ValueError(f"a pool needs at least 1 worker, not {processes}")
        least, most = self._dispatcher.bounds or (1, processes)
        if not least <= processes <= most:
            raise ValueError(
                f"this pool has {least} to {most} workers (min_processes, max_processes), and cannot have {processes}"
            )
        self._check_running()
        self._dispatcher.resize(processes)

    scale_to = resize
    """Another name of `resize`, which the executors of `ropewalk.population` call."""

    def view(self, panels: Mapping[str, int] | None = None) -> View:
        """What the page and reports show about the pool now.

        Args:
            panels: names of the pictures whose data is wanted; see `ropewalk.control.view.Observable`.
        """
        return self._target.view(panels or {})

    def status(self) -> PoolStatus:
        """What the pool is doing: its workers, counts of tasks, and deaths with their causes."""
        return self._dispatcher.status(self.name, self._state)

    def wait_until_ready(self, timeout_s: float | None = None) -> None:
        """Wait until every worker takes tasks; work can be submitted before.

        Args:
            timeout_s: seconds to wait; None waits for ever.

        Raises:
            multiprocessing.TimeoutError: the workers were not ready within `timeout_s`.
            Exception: what broke the pool.
        """
        if not self._dispatcher.wait_until_ready(timeout_s):
            from multiprocessing import TimeoutError

            raise TimeoutError(f"{self.name}: not all workers were ready within {timeout_s} s")

    def close(self) -> None:
        """Take no more tasks; the workers end when all tasks are done. May be called twice."""
        if self._state == RUN and self._pid == os.getpid():
            self._state = CLOSE
            self._finish_unless_feeding()

    def terminate(self, grace_s: float | None = None) -> None:
        """End the workers at once; tasks that have not ended fail with `TaskCancelled`. May be called twice.

        Args:
            grace_s: seconds that workers have between SIGTERM and SIGKILL, for their exit handlers; None: 1 second.
        """
        if self._pid != os.getpid():
            return
        self._state = TERMINATE
        self._ender(grace_s, release=False)()

    def join(self) -> None:
        """Wait until every worker has ended. Call `close` or `terminate` first.

        Raises:
            ValueError: neither `close` nor `terminate` was called before.
        """
        if self._pid != os.getpid():
            return  # a forked child: the workers belong to its parent
        if self._state == RUN:
            raise ValueError("Pool is still running: call close() or terminate() before join()")
        if self._state == CLOSE:
            self._feeders.finish()
            self._dispatcher.finish()
        try:
            self._dispatcher.wait_until_finished()
        except KeyboardInterrupt as error:
            error.add_note(self._dispatcher.in_words())
            raise
        self._callbacks.end()
        self._wait_for_output()
        self._release()

    def __enter__(self) -> Pool:
        self._check_open()  # and not whether it is broken: its calls say so, and without a block nobody would end it
        return self

    def __exit__(self, *exc: object) -> None:
        self.terminate()
        self.join()

    def __repr__(self) -> str:
        return f"<ropewalk.Pool {self.name} {self._state} with {self._dispatcher.num_wanted} workers>"

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()  # pyright: ignore[reportPrivateUsage]

    def __reduce__(self) -> Any:
        raise NotImplementedError(
            "a pool cannot be sent to another process; make a pool inside the task instead (it joins the same session)"
        )

    def __del__(self) -> None:
        if getattr(self, "_state", TERMINATE) == RUN and self._pid == os.getpid():
            warnings.warn(f"unclosed running multiprocessing pool {self!r}", ResourceWarning, source=self, stacklevel=2)
            if not self._released:  # the collector may come while this thread holds the pool's lock: end it on the loop
                self._session.loop.call_soon(self._ender())

    # Code that is built upon a pool, such as the futures of `compat.executor`, submits jobs of its own.

    def start_job(
        self, job: PoolJob, func: Callable[..., Any], cut: Iterable[Sequence[Any]], kind: int, seed: int | None = None
    ) -> None:
        """Run `func` for items that were cut into units; the job is told the results (see `PoolJob`).

        Args:
            job: the job that gets the results.
            func: the function to call.
            cut: the items of each unit, in order.
            kind: a `CallKind`, which says how an item becomes a call.
            seed: the number from which `task_seed` is derived; by default the number of this call in the pool.

        Raises:
            PoolClosed: the pool takes no more work.
            NotPicklable: a unit cannot be sent.
            Exception: what broke the pool.
        """
        self._check_running()
        self._submitter.submit(job, func, cut, kind, seed)

    @property
    def num_workers(self) -> int:
        """The number of workers that the pool wants, or the largest number if it is elastic."""
        return self._dispatcher.most_workers

    def waiting_jobs(self) -> list[PoolJob]:
        """Return all jobs that still wait for results."""
        return self._dispatcher.jobs()

    def _limit_ahead(self, num_units: int) -> None:
        """Give a worker at most this number of units at a time; by default as many as are expected to be short."""
        self._dispatcher.limit_ahead(num_units)

    def _sweep_soon(self) -> None:
        """Forget the unstarted tasks of withdrawn jobs; may be called from anywhere, also by the garbage collector."""
        self._session.loop.call_soon(self._dispatcher.sweep)

    def cancel_soon(self, job: PoolJob, error: BaseException | None = None) -> None:
        """Recall the unstarted tasks of a job, and fail it with `error` if given; may be called from anywhere."""
        self._session.loop.call_soon(lambda: self._dispatcher.cancel(job, error))

    def _call_back(self, call: Callable[[], None]) -> None:
        """Run user code, such as a callback, in the pool's thread for callbacks; may be called from any thread."""
        self._callbacks.put(call)

    @property
    def is_usable(self) -> bool:
        """Whether the pool takes tasks, as far as this process knows."""
        return self._state == RUN and self._pid == os.getpid() and not (self._session.closed or self._dispatcher.broken)

    @property
    def session(self) -> Session:
        """The session that the pool's workers belong to."""
        return self._session

    # Attributes of multiprocessing's pool that other code reads

    @property
    def _pool(self) -> list[WorkerHandle]:
        """The workers, with `pid` and `is_alive`, as tests and tools for multiprocessing's pool expect them."""
        deadline = time.monotonic() + 10
        while True:
            handles = [parts.WorkerHandle(self._session, worker.id) for worker in self._dispatcher.present()]
            if all(handle.pid for handle in handles) or time.monotonic() > deadline:
                return handles
            time.sleep(0.001)

    @property
    def _processes(self) -> int:
        """The number of workers; many libraries divide their work by it."""
        return self.num_workers

    def _repopulate_pool(self) -> None:
        """Do nothing: dead workers are replaced when they die."""

    # Private

    def _wait_for_output(self) -> None:
        """Wait until what the workers have printed is shown, so that it comes before what the program prints next."""
        self._dispatcher.tell_the_rest()
        if not self._released and not self._session.loop.is_here:
            self._session.output.wait_until_shown()

    def _wait(self, begin: Callable[[], AsyncResult[T]]) -> T:
        """Begin a job, and wait for its result."""
        latest = self._submitter.latest
        latest.job = None
        try:
            return begin().get()
        except KeyboardInterrupt as error:
            job = latest.job and latest.job()
            if job and not job.ready():  # no caller can ask for its results any more: its tasks need not run
                self._dispatcher.cancel(job, error, running=True)
            raise

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise PoolClosed(
                f"{self.name} belongs to process {self._pid}, from which this one ({os.getpid()}) was forked; "
                "make a pool here, or use the pool there"
            )
        if self._state != RUN:
            raise PoolClosed(f"Pool not running: {self.name} was {'closed' if self._state == CLOSE else 'terminated'}")

    def _check_running(self) -> None:
        self._check_open()
        self._dispatcher.raise_if_broken()

    def _open_submitter(self) -> JobSubmitter:
        """What makes jobs, if the pool still takes any."""
        self._check_running()
        return self._submitter

    def _imap(
        self, func: Callable[..., T], iterable: Iterable[Any], chunksize: int, seed: int | None, *, ordered: bool
    ) -> IMapIterator[T]:
        self._check_running()
        return self._feeders.start(func, iterable, chunksize, seed, self._feeder_ended, ordered=ordered)

    def _feeder_ended(self) -> None:
        if self._state == CLOSE:
            self._finish_unless_feeding()

    def _finish_unless_feeding(self) -> None:
        if not self._feeders.are_feeding:
            self._dispatcher.finish()

    def _ender(self, grace_s: float | None = None, *, release: bool = True) -> Callable[[], None]:
        """Return what ends the parts of this pool, and holds no reference to the pool, which may be garbage."""
        feeders, dispatcher, control, session = self._feeders, self._dispatcher, self._control, self._session
        error = TaskCancelled(f"{self.name} was terminated before this task ended")

        def end() -> None:
            feeders.drop_all()
            dispatcher.terminate(error, grace_s)
            if release:
                _release(dispatcher, control, session)

        return end

    def _release(self) -> None:
        if not self._released:
            self._released = True
            _release(self._dispatcher, self._control, self._session)

    def _announce(self) -> None:
        """Let `ropewalk ps` and the page find the pool, if it lives for a while."""
        session = self._session
        self._control = parts.ControlServer(session.loop, session.folder, session.run_id, self._target)
        self._dispatcher.when_failed(self._control.close_soon)
        self._control.open_later(_ANNOUNCED_AFTER_S)


def _release(dispatcher: Dispatcher, control: ControlServer | None, session: Session) -> None:
    if control:
        dispatcher.when_failed(None)
        control.close_soon()
    dispatcher.close()
    session.release()


def _constant(value: object, what: str) -> Constant:
    return parts.first_constant(parts.dumps_code(value, what=what))
