"""`CheckpointFuture`: a checkpoint that is being written while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path


class CheckpointFuture:
    """What `Trainer.save` returns: copies are taken, and are being written.

    Args:
        result: of the path.
    """

    def __init__(self, result: Future[Path]) -> None:
        self._result = result
        self._is_told = False

    @classmethod
    def done_at(cls, path: Path) -> CheckpointFuture:
        """One that is over."""
        result: Future[Path] = Future()
        result.set_result(path)
        return cls(result)

    @classmethod
    def begun(cls, finish: Callable[[], Path]) -> CheckpointFuture:
        """One that a thread of its own finishes."""
        result: Future[Path] = Future()

        def run() -> None:
            try:
                result.set_result(finish())
            except BaseException as error:
                result.set_exception(error)

        threading.Thread(target=run, name="ropewalk-saving", daemon=True).start()
        return cls(result)

    def __repr__(self) -> str:
        if not self.done:
            return "<checkpoint being written>"
        error = self._result.exception()
        return f"<checkpoint {self._result.result()}>" if error is None else f"<checkpoint failed: {error}>"

    @property
    def done(self) -> bool:
        """Whether it is whole, or has failed."""
        return self._result.done()

    def wait(self, timeout_s: float | None = None) -> Path:
        """Wait until it is whole; gives its folder.

        Raises:
            TimeoutError: it takes longer.
            StageLost: a process died while it was written; the checkpoint before is untouched.
            OSError: it cannot be written there.
        """
        try:
            return self._result.result(timeout_s)
        finally:
            self._is_told = self._result.done()

    def settle(self) -> None:
        """Wait until it is over; raises what `wait` would, if nobody has heard that yet."""
        if not self._is_told:
            self.wait()
