"""The script of a job takes its own files by its number in the request, whatever batch system counts it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ropewalk.engines.engine import JobSpec
from ropewalk.engines.job_script import job_script
from ropewalk.engines.lsf import LsfEngine
from ropewalk.engines.pbs import PbsEngine


@pytest.mark.parametrize(
    ("number", "variables", "expected"),
    [
        (PbsEngine.task_number, {}, 0),
        (PbsEngine.task_number, {"PBS_ARRAY_INDEX": "3"}, 3),
        (LsfEngine.task_number, {}, 0),
        (LsfEngine.task_number, {"LSB_JOBINDEX": "0"}, 0),
        (LsfEngine.task_number, {"LSB_JOBINDEX": "4"}, 3),
    ],
)
def test_each_job_takes_its_own_credentials_and_writes_its_own_log(
    number: str, variables: dict[str, str], expected: int, tmp_path: Path
) -> None:
    folder = tmp_path / "it's $HOME"
    folder.mkdir()
    for index in range(5):
        (folder / f"{index}.stdin").write_text(f"for {index}")
    script = job_script("x", JobSpec(["cat"], stdin=b"-"), "f00d", str(folder), number, writes_log=True)
    subprocess.run(["/bin/bash"], input=script, text=True, check=True, env={**os.environ, **variables})
    assert (folder / f"{expected}.log").read_text() == f"for {expected}"
    assert {path.name for path in folder.glob("*.stdin")} == {f"{i}.stdin" for i in range(5)} - {f"{expected}.stdin"}
