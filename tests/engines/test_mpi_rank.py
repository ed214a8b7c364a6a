"""What a rank hands to the job that it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_a_job_gets_neither_the_ranks_variables_nor_the_token_of_slurm(tmp_path: Path) -> None:
    code = "import os; print(sorted(name for name in os.environ if name.startswith(('PMI', 'SLURM', 'ROPEWALK'))))"
    job = {"command": [sys.executable, "-c", code], "environment": {"ROPEWALK_RUN_ID": "f00d"}}
    (tmp_path / "job.json").write_text(json.dumps(job))
    (tmp_path / "0.stdin").write_bytes(b"")
    environment = {**os.environ, "PMI_RANK": "0", "PMI_SIZE": "1", "SLURM_JWT": "secret", "SLURM_JOB_ID": "7"}
    rank = [sys.executable, "-P", "-m", "ropewalk.engines.mpi_rank", str(tmp_path)]
    subprocess.run(rank, env=environment, check=True)
    assert (tmp_path / "0.log").read_text() == "['ROPEWALK_RUN_ID', 'SLURM_JOB_ID']\n"
