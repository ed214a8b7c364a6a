"""joblib backend on Ropewalk's workers: `Parallel(backend="ropewalk")`, after a call of `register_joblib_backend`.

    ropewalk.register_joblib_backend()
    with joblib.parallel_config(backend="ropewalk", engine="slurm", n_jobs=64):
        joblib.Parallel()(joblib.delayed(fit)(fold) for fold in folds)

Options of `Executor` are passed as above. Large arrays always go through shared memory, so joblib's memory mapping
(`max_nbytes`, `mmap_mode`, `temp_folder`) is not needed and has no effect here.

    configure ─▶ the idle executor, if it has the same options, ─▶ calls ─▶ terminate ─▶ idle ─ 60 s ─▶ ended
                 or a new one                                                   └ ends the previous idle executor

So workers are reused between calls of `Parallel`, whether or not the calls share a `with` block or `parallel_config`.
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
    _backends: Any = importlib.import_module("joblib._parallel_backends")  # where joblib keeps its base classes
except ImportError as error:
    raise ImportError(f"the joblib backend needs joblib ({error}): pip install joblib") from error

_NOT_FOR_US = frozenset({"max_nbytes", "mmap_mode", "temp_folder", "verbose", "context"})
"""Options that joblib passes to all backends, although only backends that map memory or fork use them."""
_IDLE_S = 60.0
"""Default of joblib's option `idle_worker_timeout`: seconds after which idle workers are ended. (loky's default is five
minutes; these workers may be on a cluster, where idle time costs money.)"""


class _Idle:
    """The executor that was used last and is idle now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: tuple[tuple[Any, ...], Executor] | None = None
        self._watched: weakref.WeakSet[Executor] = weakref.WeakSet()

    def take(self, made_with: tuple[Any, ...]) -> Executor | None:
        """Take the executor out, if it was created with the same options and is usable; else return None."""
        with self._lock:
            if self._kept is None or self._kept[0] != made_with:
                return None
            (_, executor), self._kept = self._kept, None
        return executor if executor.is_usable else None

    def put(self, made_with: tuple[Any, ...], executor: Executor, idle_s: float) -> None:
        """Keep an executor for `idle_s` seconds, if it has workers; the previous idle executor ends."""
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
        self._let_go()  # if the session has closed meanwhile, no callback reports it

    def _end(self, kept: tuple[tuple[Any, ...], Executor]) -> None:
        with self._lock:
            if self._kept is not kept:
                return
            self._kept = None
        kept[1].shutdown(wait=False)

    def _let_go(self) -> None:
        """Drop the executor if its session has closed."""
        with self._lock:
            kept = self._kept
            if kept is None or kept[1].is_usable:
                return
            self._kept = None
        kept[1].shutdown(wait=False)

    def end(self) -> None:
        """End the idle executor, if there is one, and wait until it has ended."""
        with self._lock:
            kept, self._kept = self._kept, None
        if kept:
            kept[1].shutdown(wait=True)

    def forget(self) -> None:
        """Forget the executor in a forked child, because it belongs to the parent."""
        self._lock = threading.Lock()
        self._kept = None


_idle = _Idle()
os.register_at_fork(after_in_child=_idle.forget)


class RopewalkBackend(_backends.AutoBatchingMixin, _backends.ParallelBackendBase):
    """The backend that joblib uses to start workers and submit calls."""

    supports_retrieve_callback = True
    supports_sharedmem = False
    supports_inner_max_num_threads = True
    uses_threads = False
    default_n_jobs = -1
    """A user who selects this backend without a number of jobs gets all workers."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # pyright: ignore[reportUnknownMemberType]  # joblib has no types
        self._executor: Executor | None = None
        self._made_with: tuple[int, dict[str, Any]] = 1, {}
        self._idle_s = _IDLE_S

    # Methods that joblib calls

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return the number of workers that `n_jobs` means: -1 is all, -2 all but one."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            return 1
        if n_jobs > 0:
            return n_jobs
        session: Session = self.backend_kwargs.get("session") or default_session(self.backend_kwargs.get("engine"))
        return max(1, session.default_size + 1 + n_jobs)

    def configure(self, n_jobs: int = 1, parallel: Any = None, prefer: Any = None, require: Any = None, **options: Any):
        """Set up `n_jobs` workers, and return their number."""
        n_jobs = self.effective_n_jobs(n_jobs)
        if n_jobs == 1:
            raise _backends.FallbackToBackend(_backends.SequentialBackend(nesting_level=self.nesting_level))
        asked = {name: value for name, value in options.items() if name not in _NOT_FOR_US}
        self._made_with = n_jobs, self._options(self.backend_kwargs | asked)
        self._executor = _idle.take(self._made_with) or Executor(n_jobs, **self._made_with[1])
        self.parallel = parallel
        return n_jobs

    def _options(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the options of the executor."""
        self._idle_s = asked.pop("idle_worker_timeout", None) or _IDLE_S
        if self.inner_max_num_threads is not None:
            threads = blas_threads_environment(self.inner_max_num_threads)
            asked["environment"] = threads | dict(asked.get("environment") or {})
        return asked

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], Any] | None = None) -> Future[Any]:
        """Run a batch of calls; `callback` gets the future when the batch has finished."""
        assert self._executor, "joblib configures a backend before it submits"
        # The batch is passed as an argument and not as the function, because functions are cached for the next call.
        future = self._executor.submit(_joblib_batch, func)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """Return the results of a batch that has finished."""
        return out.result()

    def terminate(self) -> None:
        """End a call of `Parallel`, or its `with` block; the workers stay idle for the next one."""
        executor, self._executor = self._executor, None
        if executor is not None:
            _idle.put(self._made_with, executor, self._idle_s)
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Stop the workers immediately; with `ensure_ready`, start new workers for the next calls."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.terminate_workers()
        if ensure_ready:
            self._executor = Executor(self._made_with[0], **self._made_with[1])

    def __reduce__(self) -> Any:  # a task that contains a backend, such as an estimator's, creates its own
        return _rebuild, (self.nesting_level, self.inner_max_num_threads, self.backend_kwargs)


def end_idle_workers() -> None:
    """End the idle workers now, without waiting for `idle_worker_timeout`."""
    _idle.end()


def register() -> None:
    """Register the backend "ropewalk" with joblib."""
    joblib.register_parallel_backend("ropewalk", RopewalkBackend)


def _joblib_batch(batch: Callable[[], Any]) -> Any:
    """Run a batch; the report of a death in it has the name of this function."""
    return batch()


def _rebuild(nesting_level: int | None, num_threads: int | None, options: dict[str, Any]) -> RopewalkBackend:
    return RopewalkBackend(nesting_level=nesting_level, inner_max_num_threads=num_threads, **options)
