from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("wandb")

COPY = """
import sys
from pathlib import Path

from ropewalk.tracking.records import ConfigIs, LabelsAre, Metrics, NoteAdded, RunRecord, StateIs
from ropewalk.tracking.sinks.sink import CopiedRun
from ropewalk.tracking.sinks.wandb import WandbRun

sink = WandbRun(mode="offline")
sink.begin(CopiedRun("a1b2c3", "digits", "first", Path(sys.argv[1]), {"lr": 0.1}, 1))
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
"""


def test_wandb_gets_an_offline_run(tmp_path: Path) -> None:
    """In a process of its own, because W&B starts a service that ends with the interpreter."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-P", "-c", COPY, str(tmp_path)], env=environment, check=True, timeout=100)
    (file,) = tmp_path.glob("wandb/offline-run-*/run-a1b2c3.wandb")
    content = file.read_bytes()
    assert b"loss" in content and b"validation/accuracy" in content and b"a remark" in content and b"good" in content
