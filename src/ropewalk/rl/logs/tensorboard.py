"""`TensorBoardLogger`: rows as scalars in event files of TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from ropewalk.tracking.records import Metrics, RunRecord
from ropewalk.tracking.sinks.sink import CopiedRun
from ropewalk.tracking.sinks.tensorboard import TensorBoardFiles


class TensorBoardLogger:
    """Writes event files, which `tensorboard --logdir FOLDER` shows: `progress/score`, `evaluation/score`, ....

    Args:
        folder: made if it is missing; a folder for each experiment.

    Raises:
        ModuleNotFoundError: the package tensorboard is not installed.
    """

    def __init__(self, folder: Path | str) -> None:
        self._files, self._folder, self._is_begun = TensorBoardFiles(folder), Path(folder), False

    def __repr__(self) -> str:
        return f"TensorBoardLogger({str(self._folder)!r})"

    def __call__(self, label: str, row: Mapping[str, float | int | str | None]) -> None:
        """See `Logger`.

        Raises:
            OSError: the file cannot be written.
        """
        if not self._is_begun:
            self._files.begin(CopiedRun("", "", "", self._folder, {}, 1))
            self._is_begun = True
        numbers = {name: float(value) for name, value in row.items() if isinstance(value, int | float)}
        steps = numbers.pop("steps")
        group = "evaluation" if label == "evaluation" else "progress"  # the end is the last row of progress
        metrics = Metrics(group, list(numbers), list(numbers.values()), steps, time.time())
        self._files.apply([RunRecord("", metrics)])

    def close(self) -> None:
        """Close the file; what was logged is there without it, too."""
        self._files.close()


__all__ = ["TensorBoardLogger"]
