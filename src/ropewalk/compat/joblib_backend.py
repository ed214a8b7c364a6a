"""joblib on Ropewalk's workers: `Parallel(backend="ropewalk")`, once `register_joblib_backend` was called.

    ropewalk.register_joblib_backend()
    with joblib.parallel_config(backend="ropewalk", engine="slurm", n_jobs=64):
        joblib.Parallel()(joblib.delayed(fit)(fold) for fold in folds)

Options of `Executor` are passed as above. Large arrays go through shared memory by themselves, so that joblib's
memory mapping (`max_nbytes`, `mmap_mode`, `temp_folder`) is not needed and does nothing here.

    configure ─▶ the idle executor, if it was made with the same options ─▶ calls ─▶ terminate ─▶ idle ─ 60 s ─▶ ended
                 else a new one                                                           └ ends one that idled before

So workers stay between calls of `Parallel`, whether or not these have a `with` block or `parallel_config` in common.
"""

from __future__ import annotations

import importlib
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ropewalk.compat.executor import Executor
from ropewalk.engines.resources import blas_threads_environment
from ropewalk.processes.session import Session
from ropewalk.processes.shared_sessions import default_session

try:
    joblib: Any = importlib.import_module("joblib")
    _backends: Any = importlib.import_module("joblib._parallel_backends")  # joblib's own place for what it lets extend
except ImportError as error:
    raise ImportError(f"the joblib backend needs joblib ({error}): pip install joblib") from error

#: What joblib passes to all backends, and only those that map memory or fork need.
_NOT_FOR_US = frozenset({"max_nbytes", "mmap_mode", "temp_folder", "verbose", "context"})
#: Workers that no call of `Parallel` uses are ended after so long, by joblib's option `idle_worker_timeout`. (With loky
#: that is five minutes; ours may be on a cluster, where they cost somebody something.)
_IDLE_S = 60.0


class _Idle:
    """The executor that was used last, while no call of `Parallel` uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: tuple[tuple[Any, ...], Executor] | None = None
        self._watched: weakref.WeakSet[Executor] = weakref.WeakSet()

    def take(self, made_with: tuple[Any, ...]) -> Executor | None:
        """The executor, if it was made with the same options and can be used; it is not idle any more."""
        with self._lock:
            if self._kept is None or self._kept[0] != made_with:
                return None
            (_, executor), self._kept = self._kept, None
        return executor if executor.is_usable else None

    def put(self, made_with: tuple[Any, ...], executor: Executor, idle_s: float) -> None:
        """Keep an executor for so long, if it has workers; another one that is kept ends."""
        if not executor.has_started:
            return
        mine = made_with, executor
        with self._lock:
            before, self._kept = self._kept, mine
        if before:
            before[1].shutdown(wait=False)
        executor.call_later(idle_s, lambda: self._end(mine))
        if executor not in self._watched:
            self._watched.add(executor)
            executor.when_session_closed(self._let_go)
        self._let_go()  # if its session has ended meanwhile, nobody tells

    def _end(self, kept: tuple[tuple[Any, ...], Executor]) -> None:
        with self._lock:
            if self._kept is not kept:
                return
            self._kept = None
        kept[1].shutdown(wait=False)

    def _let_go(self) -> None:
        """A session may have ended."""
        with self._lock:
            kept = self._kept
            if kept is None or kept[1].is_usable:
                return
            self._kept = None
        kept[1].shutdown(wait=False)

    def end(self) -> None:
        """End it, if there is one, and wait for that."""
        with self._lock:
            kept, self._kept = self._kept, None
        if kept:
            kept[1].shutdown(wait=True)

    def forget(self) -> None:
        """In a forked child: it is the parent's."""
        self._lock = threading.Lock()
        self._kept = None


_idle = _Idle()
os.register_at_fork(after_in_child=_idle.forget)


class RopewalkBackend(_backends.AutoBatchingMixin, _backends.ParallelBackendBase):
    """What joblib asks for workers."""

    supports_retrieve_callback = True
    supports_sharedmem = False
    supports_inner_max_num_threads = True
    uses_threads = False
    #: Who chooses this backend and says no number wants all there are.
    default_n_jobs = -1

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # pyright: ignore[reportUnknownMemberType]  # joblib has no types
        self._executor: Executor | None = None
        self._made_with: tuple[int, dict[str, Any]] = 1, {}
        self._idle_s = _IDLE_S

    # joblib's names from here on

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """How many workers `n_jobs` means: -1 is all, -2 all but one."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            return 1
        if n_jobs > 0:
            return n_jobs
        session: Session = self.backend_kwargs.get("session") or default_session(self.backend_kwargs.get("engine"))
        return max(1, session.default_size + 1 + n_jobs)

    def configure(self, n_jobs: int = 1, parallel: Any = None, prefer: Any = None, require: Any = None, **options: Any):
        """Have so many workers; returns how many."""
        n_jobs = self.effective_n_jobs(n_jobs)
        if n_jobs == 1:
            raise _backends.FallbackToBackend(_backends.SequentialBackend(nesting_level=self.nesting_level))
        asked = {name: value for name, value in options.items() if name not in _NOT_FOR_US}
        self._made_with = n_jobs, self._options(self.backend_kwargs | asked)
        self._executor = _idle.take(self._made_with) or Executor(n_jobs, **self._made_with[1])
        self.parallel = parallel
        return n_jobs

    def _options(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Those of the executor."""
        self._idle_s = asked.pop("idle_worker_timeout", None) or _IDLE_S
        if self.inner_max_num_threads is not None:
            threads = blas_threads_environment(self.inner_max_num_threads)
            asked["environment"] = threads | dict(asked.get("environment") or {})
        return asked

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], Any] | None = None) -> Future[Any]:
        """Run a batch of calls; the callback gets the future when that has ended."""
        assert self._executor, "joblib configures a backend before it submits"
        # The batch is an argument, and not what is called: what is called is kept for the next call.
        future = self._executor.submit(_run, func)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """The results of a batch that has ended."""
        return out.result()

    def terminate(self) -> None:
        """A call of `Parallel`, or its `with` block, has ended; the workers wait for the next one."""
        executor, self._executor = self._executor, None
        if executor is not None:
            _idle.put(self._made_with, executor, self._idle_s)
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """End the workers at once; with `ensure_ready` there are new ones for what comes next."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.terminate_workers()
        if ensure_ready:
            self._executor = Executor(self._made_with[0], **self._made_with[1])

    def __reduce__(self) -> Any:  # tasks that carry it, such as an estimator's, make their own
        return _rebuild, (self.nesting_level, self.inner_max_num_threads, self.backend_kwargs)


def end_idle_workers() -> None:
    """End the workers that wait for a next call of `Parallel`, instead of when they have idled for long enough."""
    _idle.end()


def register() -> None:
    """Let joblib know the backend "ropewalk"."""
    joblib.register_parallel_backend("ropewalk", RopewalkBackend)


def _run(batch: Callable[[], Any]) -> Any:
    return batch()


def _rebuild(nesting_level: int | None, num_threads: int | None, options: dict[str, Any]) -> RopewalkBackend:
    return RopewalkBackend(nesting_level=nesting_level, inner_max_num_threads=num_threads, **options)
