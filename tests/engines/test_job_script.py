"""The script of a job takes its own files by its number in the request, whatever batch system counts it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ropewalk.engines.engine import JobSpec
from ropewalk.engines.job_script import SETUP_FAILED, job_script
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


@pytest.mark.parametrize(
    ("setup", "told"),
    [
        ("exit 3", "ropewalk: the option setup of the engine x ended with exit code 3 at: exit 3; "),
        ("true; false; true", "ended with exit code 1 at: false; "),
        ("exit 0", "ended with exit code 0 at: exit 0; "),
        ("no-such-command 1", "no-such-command: command not found\nropewalk: the option setup of the engine x ended"),
        ("function load { return 4; }; load x", "ended with exit code 4"),
        ("if fi", "syntax error"),
        ("set -u; echo $NO_SUCH_VARIABLE", "NO_SUCH_VARIABLE: unbound variable"),
        ("source ./fails", "ended with exit code 1 at: source ./fails; "),
    ],
)
def test_a_line_of_the_setup_that_fails_ends_the_job_and_is_told(setup: str, told: str, tmp_path: Path) -> None:
    """It went on without what the line should have set up; of `exit 3` six jobs in turn said nothing."""
    (tmp_path / "fails").write_text("true\nfalse\n")
    done = _run_with(setup, tmp_path)
    assert done.returncode == SETUP_FAILED and told in done.stderr and done.stdout == "", done


@pytest.mark.parametrize(
    "setup",
    [
        "false || true",
        "[ -f /no/such/file ] && false",
        "if false; then exit 1; fi",
        "function load { false; true; }; load x",
        "source ./checks",
        "X=(); trap 'echo never' EXIT",
    ],
)
def test_commands_whose_failure_is_looked_at_do_not_end_it(setup: str, tmp_path: Path) -> None:
    (tmp_path / "checks").write_text("false\nexport CHECKED=$?\n")
    done = _run_with(setup, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the agent\n", "")


def _run_with(setup: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = folder / "job.sh"
    script.write_text(job_script("x", JobSpec(["echo", "the agent"]), "f00d", str(folder), "0", setup=[setup]))
    return subprocess.run(["/bin/bash", script], capture_output=True, text=True, cwd=folder)
