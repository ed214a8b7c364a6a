"""joblib on Ropewalk's workers: `Parallel(backend="ropewalk")`, once `register_joblib_backend` was called.

    ropewalk.register_joblib_backend()
    with joblib.parallel_config(backend="ropewalk", engine="slurm", n_jobs=64):
        joblib.Parallel()(joblib.delayed(fit)(fold) for fold in folds)

Options of `Executor` are passed as above. Large arrays go through shared memory by themselves, so that joblib's
memory mapping (`max_nbytes`, `mmap_mode`, `temp_folder`) is not needed and does nothing here. The workers stay between
calls of `Parallel` for as long as the backend does: to the end of `parallel_config`, or of a `Parallel` of its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ropewalk.compat.executor import Executor
from ropewalk.processes.session import Session
from ropewalk.processes.shared_sessions import default_session

try:
    joblib: Any = importlib.import_module("joblib")
    _backends: Any = importlib.import_module("joblib._parallel_backends")  # joblib's own place for what it lets extend
except ImportError as error:
    raise ImportError(f"the joblib backend needs joblib ({error}): pip install joblib") from error

#: What joblib passes to all backends, and only those that map memory or fork need.
_NOT_FOR_US = frozenset({"max_nbytes", "mmap_mode", "temp_folder", "verbose", "context"})


class RopewalkBackend(_backends.AutoBatchingMixin, _backends.ParallelBackendBase):
    """What joblib asks for workers."""

    supports_retrieve_callback = True
    supports_sharedmem = False
    uses_threads = False
    #: Who chooses this backend and says no number wants all there are.
    default_n_jobs = -1

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # pyright: ignore[reportUnknownMemberType]  # joblib has no types
        self._executor: Executor | None = None
        self._made_with: tuple[int, dict[str, Any]] | None = None

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
        made_with = n_jobs, self.backend_kwargs | asked
        if self._executor is None or made_with != self._made_with:
            self._end_executor()
            self._executor, self._made_with = Executor(n_jobs, **made_with[1]), made_with
        self.parallel = parallel
        return n_jobs

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
        """A call of `Parallel` has ended; the workers wait for the next one."""
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """End the workers at once; with `ensure_ready` there are new ones for what comes next."""
        made_with = self._made_with
        if self._executor is not None:
            self._executor.terminate_workers()
        self._executor = self._made_with = None
        if ensure_ready and made_with:
            self._executor, self._made_with = Executor(made_with[0], **made_with[1]), made_with

    def __reduce__(self) -> Any:  # tasks that carry it, such as an estimator's, make their own
        return _rebuild, (self.nesting_level, self.backend_kwargs)

    def _end_executor(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True)
            self._executor = None


def register() -> None:
    """Let joblib know the backend "ropewalk"."""
    joblib.register_parallel_backend("ropewalk", RopewalkBackend)


def _run(batch: Callable[[], Any]) -> Any:
    return batch()


def _rebuild(nesting_level: int | None, options: dict[str, Any]) -> RopewalkBackend:
    return RopewalkBackend(nesting_level=nesting_level, **options)
