"""`CheckpointFuture`: a checkpoint that is being written while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from ropewalk.user_frames import user_frames_only


class CheckpointFuture:
    """The future that `Trainer.save` returns: copies are taken, and are being written.

    Args:
        result: gives the path of the checkpoint.
    """

    def __init__(self, result: Future[Path]) -> None:
        self._result = result
        self._is_told = False

    @classmethod
    def done_at(cls, path: Path) -> CheckpointFuture:
        """Return a future that is already done."""
        result: Future[Path] = Future()
        result.set_result(path)
        return cls(result)

    @classmethod
    def begun(cls, finish: Callable[[], Path]) -> CheckpointFuture:
        """Return a future that a new thread completes."""
        result: Future[Path] = Future()

        def run() -> None:
            try:
                result.set_result(finish())
            except BaseException as error:
                result.set_exception(error)

        threading.Thread(target=run, name="ropewalk-checkpoint", daemon=True).start()
        return cls(result)

    def __repr__(self) -> str:
        if not self.done:
            return "<checkpoint being written>"
        error = self._result.exception()
        return f"<checkpoint {self._result.result()}>" if error is None else f"<checkpoint failed: {error}>"

    @property
    def done(self) -> bool:
        """Whether the checkpoint is complete, or has failed."""
        return self._result.done()

    @user_frames_only
    def wait(self, timeout_s: float | None = None) -> Path:
        """Wait until the checkpoint is complete.

        Args:
            timeout_s: seconds; None waits for ever.

        Returns:
            The folder of the checkpoint.

        Raises:
            TimeoutError: the checkpoint is not complete within `timeout_s`.
            StageLost: a process died while it was written; the previous checkpoint is untouched.
            OSError: the checkpoint cannot be written there.
        """
        try:
            return self._result.result(timeout_s)
        finally:
            self._is_told = self._result.done()

    def when_written(self, call: Callable[[Path], object]) -> None:
        """Arrange for a call with the folder once the checkpoint is complete; none if it fails. From any thread."""

        def done(result: Future[Path]) -> None:
            if result.exception() is None:
                call(result.result())

        self._result.add_done_callback(done)

    def settle(self) -> None:
        """Wait until writing has ended; raises what `wait` would raise, unless a caller has already seen that error."""
        if not self._is_told:
            self.wait()
