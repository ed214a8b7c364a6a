"""The page on other trackers says how to take over the runs that they have; with the real ones, where installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ropewalk.tracking import open_store

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming-from" / "trackers.md"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROPEWALK_STORE", str(tmp_path / "runs.db"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


def run_block(beginning: str) -> None:
    """Run the block of the page that begins with a line."""
    blocks = PAGE.read_text().split("```py\n")[1:]
    (code,) = (block.partition("```")[0] for block in blocks if beginning in block.partition("```")[0])
    exec(compile(code, str(PAGE), "exec"), {})


def kept() -> list[tuple[str, str, dict[str, Any], list[str], list[float], list[float]]]:
    with open_store(os.environ["ROPEWALK_STORE"]) as store:
        return [
            (run.project, run.name, dict(run.config), list(run.labels), list(points.steps), list(points.values))
            for run in store.runs(order="created")
            for points in [store.points(run.id, "loss")]
        ]


def test_runs_of_mlflow(tmp_path: Path) -> None:
    mlflow: Any = pytest.importorskip("mlflow")
    client = mlflow.MlflowClient(tracking_uri="file:./mlruns")
    run = client.create_run(client.create_experiment("digits"), run_name="first").info.run_id
    client.log_param(run, "lr", 0.1)
    for step in (1, 5):
        client.log_metric(run, "loss", 1 / step, step=step)
    run_block("import mlflow")
    assert kept() == [("digits", "first", {"lr": "0.1"}, ["from mlflow"], [1, 5], [1.0, 0.2])]


def test_files_of_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from ropewalk.tracking.records import Metrics, RunRecord
    from ropewalk.tracking.sinks.sink import CopiedRun
    from ropewalk.tracking.sinks.tensorboard import TensorBoardFiles

    sink = TensorBoardFiles(tmp_path / "logs" / "first")
    sink.begin(CopiedRun("a1", "digits", "first", tmp_path, {}, 1))
    sink.apply([RunRecord("a1", Metrics("", ["loss"], [1 / step], step, 100.0)) for step in (1, 4)])
    sink.close()
    run_block("EventAccumulator")
    assert kept() == [("from tensorboard", "first", {}, [], [1, 4], [1.0, 0.25])]
