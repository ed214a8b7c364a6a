"""Rows of an experiment in files of comma-separated values."""

from __future__ import annotations

import csv
from pathlib import Path

from ropewalk import rl


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_each_label_has_a_file_of_its_own(tmp_path: Path) -> None:
    logger = rl.CSVLogger(tmp_path / "logs")
    logger("progress", {"steps": 100, "score": None})
    logger("evaluation", {"steps": 100, "score": 2.5})
    assert rows_of(tmp_path / "logs" / "progress.csv") == [{"steps": "100", "score": ""}]
    assert rows_of(tmp_path / "logs" / "evaluation.csv") == [{"steps": "100", "score": "2.5"}]


def test_a_name_that_comes_later_adds_a_column(tmp_path: Path) -> None:
    """An agent with replay learns only after `learning_starts` items, and had no column for its loss to the end."""
    logger = rl.CSVLogger(tmp_path)
    logger("progress", {"steps": 100, "bound": "actor-bound, as the learner waits"})
    logger("progress", {"steps": 200, "loss": 0.5, "bound": None})
    logger("progress", {"steps": 300, "bound": None})
    assert rows_of(tmp_path / "progress.csv") == [
        {"steps": "100", "bound": "actor-bound, as the learner waits", "loss": ""},
        {"steps": "200", "bound": "", "loss": "0.5"},
        {"steps": "300", "bound": "", "loss": ""},
    ]


def test_a_resumed_experiment_appends_to_the_columns_of_its_file(tmp_path: Path) -> None:
    rl.CSVLogger(tmp_path)("progress", {"steps": 100, "loss": 0.5})
    rl.CSVLogger(tmp_path)("progress", {"loss": 0.25, "entropy": 0.1, "steps": 200})
    assert rows_of(tmp_path / "progress.csv") == [
        {"steps": "100", "loss": "0.5", "entropy": ""},
        {"steps": "200", "loss": "0.25", "entropy": "0.1"},
    ]


def test_a_row_that_was_cut_off_keeps_its_columns(tmp_path: Path) -> None:
    (tmp_path / "progress.csv").write_text("steps,loss\n100,0.5\n200\n")
    rl.CSVLogger(tmp_path)("progress", {"steps": 300, "entropy": 0.1})
    assert rows_of(tmp_path / "progress.csv") == [
        {"steps": "100", "loss": "0.5", "entropy": ""},
        {"steps": "200", "loss": "", "entropy": ""},
        {"steps": "300", "loss": "", "entropy": "0.1"},
    ]
