"""How a run ends before its loop does: the exceptions that `steps` raises, and what each says about the run.

They are `SystemExit`, so that `except Exception` does not swallow them, and so that a script that does not catch them
ends without a traceback, with an exit code that tells a shell that it is not done.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ropewalk.tracking.records import DONE, FAILED, PAUSED, STOPPED
from ropewalk.transport.one_traceback import one_traceback

PAUSE, STOP = "pause", "stop"
"""What can be asked of a run."""
_MOST_TRACEBACK = 20_000


class RunInterrupted(SystemExit):
    """The run ends here, by request or because its budget is used.

    Attributes:
        why: the cause.
        step: the last complete step.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, why: str, step: float = 0) -> None:
        super().__init__(why, step)
        self.why: str = why
        self.step: float = step
        self.code: str | int | None = self.exit_code

    def __str__(self) -> str:
        return self.why


class RunPaused(RunInterrupted):
    """The run pauses; it resumes from its newest checkpoint when it is continued.

    Attributes:
        checkpoint_step: the step of that checkpoint; 0 if there is none.
    """

    exit_code: ClassVar[int] = 75
    """EX_TEMPFAIL of sysexits.h: try again later."""

    def __init__(self, why: str, step: float = 0, checkpoint_step: float = 0) -> None:
        super().__init__(why, step)
        self.args: tuple[Any, ...] = (why, step, checkpoint_step)
        self.checkpoint_step: float = checkpoint_step


class RunStopped(RunInterrupted):
    """The run was asked to stop."""

    exit_code: ClassVar[int] = 130


class RunTerminated(RunInterrupted):
    """The process of the run received SIGTERM."""

    exit_code: ClassVar[int] = 143


def outcome_of(error: BaseException | None) -> tuple[str, str]:
    """Return the state of a run whose code ended with an exception, and the cause.

    Args:
        error: the exception; None if it ended by itself.
    """
    match error:
        case None:
            return DONE, ""
        case RunPaused():
            return PAUSED, error.why
        case RunInterrupted():
            return STOPPED, error.why
        case KeyboardInterrupt():
            return STOPPED, "interrupted by Ctrl-C (SIGINT)"
        case SystemExit() if not error.code:
            return DONE, ""
        case SystemExit():
            return FAILED, f"exited with {error.code!r}"
        case _:
            return FAILED, one_traceback(error)[-_MOST_TRACEBACK:]


__all__ = ["PAUSE", "STOP", "RunInterrupted", "RunPaused", "RunStopped", "RunTerminated", "outcome_of"]
