from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.tracking.records import ConfigIs, LabelsAre, Metrics, NoteAdded, RunRecord, StateIs
from ropewalk.tracking.sinks.sink import CopiedRun
from ropewalk.tracking.sinks.wandb import WandbRun

pytest.importorskip("wandb")


def test_wandb_gets_an_offline_run(tmp_path: Path) -> None:
    sink = WandbRun(mode="offline")
    sink.begin(CopiedRun("a1b2c3", "digits", "first", tmp_path, {"lr": 0.1}, 1))
    records = [
        Metrics("", ["loss"], [0.5], 3, 100.0),
        Metrics("validation", ["accuracy"], [0.5], 1, 100.0),  # an earlier step than the one before
        ConfigIs({"lr": 0.2}),
        LabelsAre(["good"]),
        NoteAdded("a remark", 101.0),
        StateIs("failed", 102.0),
    ]
    sink.apply([RunRecord("a1b2c3", record) for record in records])
    sink.close()
    sink.close()
    (file,) = tmp_path.glob("wandb/offline-run-*/run-a1b2c3.wandb")
    content = file.read_bytes()
    assert b"loss" in content and b"validation/accuracy" in content and b"a remark" in content and b"good" in content
