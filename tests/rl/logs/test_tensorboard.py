"""Rows of an experiment in event files of TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ropewalk.rl.logs import tensorboard
from ropewalk.rl.logs.tensorboard import TensorBoardLogger
from ropewalk.tracking.records import RunRecord
from ropewalk.tracking.sinks.sink import CopiedRun

ROWS = [
    ("progress", {"steps": 100, "score": 1.5, "bound": "learner-bound", "loss": None}),
    ("evaluation", {"steps": 100, "score": 2.5, "episodes": 4}),
    ("end", {"steps": 200, "score": 3.5}),
]


class RecordedFiles:
    """Stands for the files of TensorBoard, which is not installed everywhere."""

    def __init__(self, folder: Path | str) -> None:
        self.begun: list[CopiedRun] = []
        self.records: list[RunRecord] = []

    def begin(self, run: CopiedRun) -> None:
        self.begun.append(run)

    def apply(self, batch: Sequence[RunRecord]) -> None:
        self.records += batch


def test_numbers_of_rows_become_scalars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RecordedFiles(tmp_path)
    monkeypatch.setattr(tensorboard, "TensorBoardFiles", lambda folder: files)
    logger = TensorBoardLogger(tmp_path)
    for label, row in ROWS:
        logger(label, row)
    assert len(files.begun) == 1
    written = [(one.record.group, one.record.step, one.record.names, one.record.values) for one in files.records]  # type: ignore[union-attr]
    assert written == [
        ("progress", 100, ["score"], [1.5]),
        ("evaluation", 100, ["score", "episodes"], [2.5, 4.0]),
        ("progress", 200, ["score"], [3.5]),
    ]


def test_tensorboard_reads_them(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path / "runs")
    for label, row in ROWS:
        logger(label, row)
    logger.close()
    found = EventAccumulator(str(tmp_path / "runs"))
    found.Reload()
    assert [(one.step, one.value) for one in found.Scalars("progress/score")] == [(100, 1.5), (200, 3.5)]
