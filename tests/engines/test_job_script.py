"""The script of a job takes its own files by its number in the request, whatever batch system counts it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from ropewalk.engines.engine import JobSpec
from ropewalk.engines.job_script import NOT_OURS, SETUP_FAILED, checked_script, job_script
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
        (folder / f"{index}.stdin").write_text("a secret")
    script = job_script("x", JobSpec(["cat"], stdin=b"a secret"), "f00d", str(folder), number, writes_log=True)
    subprocess.run(["/bin/bash"], input=script, text=True, check=True, env={**os.environ, **variables})
    assert (folder / f"{expected}.log").read_text() == "a secret"
    assert {path.name for path in folder.glob("*.stdin")} == {f"{i}.stdin" for i in range(5)} - {f"{expected}.stdin"}


def test_credentials_that_the_launcher_has_not_written_are_not_used(tmp_path: Path) -> None:
    """Who may rename a folder above theirs had the agent join another launcher, whose code it ran as this user."""
    secret = os.urandom(100_000)
    script = job_script("x", JobSpec(["sha256sum"], stdin=secret), "f00d", str(tmp_path), "0")
    for found, code in ((b"the address of another launcher", NOT_OURS), (secret[:-1], NOT_OURS), (secret, 0)):
        (tmp_path / "0.stdin").write_bytes(found)
        done = subprocess.run(["/bin/bash"], input=script, capture_output=True, text=True)
        assert done.returncode == code
        assert done.stdout == ("" if code else f"{hashlib.sha256(secret).hexdigest()}  -\n")
        assert ("0.stdin on " in done.stderr and "is not what the launcher has written" in done.stderr) == bool(code)


def test_output_that_would_go_into_another_file_of_this_user_is_not_made(tmp_path: Path) -> None:
    """Links in the folder that was put in the place of the launcher's led to the real credentials, and to `.bashrc`."""
    real, trap, precious = tmp_path / "real [1]*", tmp_path / "trap", tmp_path / ".bashrc"
    spec = JobSpec(["echo", "the agent"], stdin=b"a secret")
    for folder in (real, trap):
        folder.mkdir()
    for path, code in ((trap, NOT_OURS), (real, 0)):
        (real / "0.stdin").write_bytes(spec.stdin)
        (trap / "0.stdin").unlink(missing_ok=True)
        (trap / "0.stdin").symlink_to(real / "0.stdin")
        (trap / "0.log").unlink(missing_ok=True)
        (trap / "0.log").symlink_to(precious)
        script = job_script("x", spec, "f00d", str(path), "0", writes_log=True)
        assert subprocess.run(["/bin/bash"], input=script, text=True).returncode == code
    assert "the agent" not in precious.read_text() and (real / "0.log").read_text() == "the agent\n"


@pytest.mark.parametrize("is_login", [False, True])
def test_a_script_that_the_launcher_has_not_written_is_not_run(is_login: bool, tmp_path: Path) -> None:
    path = tmp_path / "it's $HOME.sh"
    setup = ["function load { false; true; }; load x", "source ./checks"]
    script = job_script("x", JobSpec(["echo", "ran as", "$1"]), "f00d", str(tmp_path), '"$1"', setup=setup)
    script = script.replace("exec echo", 'echo "$0 $# $1"\nexec echo') + "\n\n"
    command = checked_script(str(path), script, "3", "two words", is_login=is_login)
    (tmp_path / "checks").write_text("false\ntrue\n")
    missing = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert missing.returncode not in (0, NOT_OURS) and f"{path}: No such file or directory" in missing.stderr
    path.write_text("echo forged")
    forged = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (forged.returncode, forged.stdout) == (NOT_OURS, "") and "is not the script" in forged.stderr
    path.write_text(script)
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "/dev/fd/9 2 3\nran as $1\n", "")
    failing = script.replace("load x", "false")
    path.write_text(failing)
    command = checked_script(str(path), failing, "3", is_login=is_login)
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == SETUP_FAILED and "at: false" in done.stderr


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
