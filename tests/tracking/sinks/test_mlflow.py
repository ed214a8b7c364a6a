from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from ropewalk.tracking.records import ArtifactKept, ConfigIs, LabelsAre, Metrics, RunRecord, StateIs
from ropewalk.tracking.sinks.mlflow import MLflowRun
from ropewalk.tracking.sinks.sink import CopiedRun

mlflow: Any = pytest.importorskip("mlflow")


def test_mlflow_has_the_run_and_goes_on_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # its newest version asks for a database otherwise
    uri = (tmp_path / "mlruns").as_uri()
    file = tmp_path / "weights.bin"
    file.write_bytes(b"weights")
    key = tmp_path / "key"
    key.write_bytes(b"key")
    for attempt, records in (
        (
            1,
            [
                Metrics("", ["loss", "by/class"], [0.5, 1.0], 1, 100.0),
                ConfigIs({"lr": 0.2}),
                LabelsAre(["good"]),
                ArtifactKept("models/weights.bin", str(file), "file", 7, hashlib.sha256(b"weights").hexdigest(), 101.0),
                ArtifactKept("stolen", str(key), "file", 3, "0" * 64, 101.0),
                ArtifactKept("elsewhere", str(tmp_path / "none"), "file", 3, "0" * 64, 101.0),
                StateIs("paused", 102.0),
            ],
        ),
        (2, [Metrics("", ["loss"], [0.25], 2, 103.0), StateIs("done", 104.0)]),
    ):
        sink = MLflowRun(uri)
        sink.begin(CopiedRun("a1", "digits", "first", tmp_path, {"lr": 0.1, "model": {"layers": 2}}, attempt))
        sink.apply([RunRecord("a1", record) for record in records])
        sink.close()
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert run.info.run_name == "first" and run.info.status == "FINISHED"
    assert run.data.params == {"lr": "0.1", "model": "{'layers': 2}"}
    assert run.data.tags["label.good"] == "true" and run.data.tags["config.lr"] == "0.2"
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(one.step, one.value, one.timestamp) for one in history] == [(1, 0.5, 100000), (2, 0.25, 103000)]
    assert [one.path for one in client.list_artifacts(run.info.run_id, "models")] == ["models/weights.bin"]
    assert [one.path for one in client.list_artifacts(run.info.run_id)] == ["models"]
