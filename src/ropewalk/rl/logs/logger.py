"""`Logger`: receives the rows of an experiment's progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

from ropewalk.rl.logs.terminal import TerminalLogger

LogRow: TypeAlias = Mapping[str, "float | int | str | None"]


class Logger(Protocol):
    """Anything that takes rows: `rl.CSVLogger(path)`, a function of label and row, the logger of a tracking service.

    If it raises an `Exception`, as when a disk is full or a service does not answer, that is logged by `logging`, and
    training goes on; the row is in the result's timeline all the same. `KeyboardInterrupt` and other exceptions that
    are not an `Exception` end the run.
    """

    def __call__(self, label: str, row: LogRow, /) -> None:
        """Take one row.

        Args:
            label: "progress", "evaluation" or "end".
            row: numbers by name; "steps" is always there.
        """
        ...


Log: TypeAlias = "Logger | str | Sequence[Logger | str] | None"
"""Where progress goes: "terminal", "silent" or None, a logger, or several of these."""


def as_logger(log: Log) -> Logger:
    """Return the logger that is meant.

    Raises:
        ValueError: a name that is none.
    """
    if log is None or log == "silent":
        return _silent
    if log == "terminal":
        return TerminalLogger()
    if isinstance(log, str):
        raise ValueError(
            f'log is "terminal", "silent", a logger such as rl.CSVLogger(folder) or rl.TensorBoardLogger(folder), a '
            f"function of a label and a row, or a list of these, not {log!r}"
        )
    if isinstance(log, Sequence):
        return several(*map(as_logger, log))
    return log


def several(*loggers: Logger) -> Logger:
    """Return a logger that hands each row to all of these."""

    def log(label: str, row: LogRow) -> None:
        for logger in loggers:
            logger(label, row)

    return log


def _silent(label: str, row: LogRow) -> None:
    del label, row


__all__ = ["Log", "LogRow", "Logger", "as_logger", "several"]
