"""Commands are run again while the server of a batch system is away, and their failures become words."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ropewalk.engines.cluster_commands import is_passing, words_of
from ropewalk.engines.slurm_commands import ask, run_command
from ropewalk.errors import EngineError
from ropewalk.process_start import start_ticks
from tests.patience import PATIENCE_S


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In front of the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def pretend(folder: Path, script: str) -> None:
    path = folder / "squeue"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    "words",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        pytest.param("slurm_load_jobs error: Socket timed out on send/recv operation", marks=pytest.mark.soak),
        pytest.param("slurm_load_jobs error: Slurm backup controller in standby mode", marks=pytest.mark.soak),
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
    ],
)
def test_a_question_is_asked_again_while_the_controller_is_away(folder: Path, words: str) -> None:
    pretend(folder, f'[ -e {folder}/seen ] && echo answer && exit; touch {folder}/seen; echo "{words}" >&2; exit 1')
    assert ask(["squeue"]) == "answer\n"


def test_a_question_that_is_wrong_is_not_asked_again(folder: Path) -> None:
    pretend(folder, f"echo . >> {folder}/asked; echo 'squeue: error: Invalid user: ada' >&2; exit 1")
    with pytest.raises(EngineError, match="squeue failed with exit code 1: squeue: error: Invalid user: ada") as caught:
        ask(["squeue"])
    assert (folder / "asked").read_text() == ".\n"
    assert not is_passing(caught.value)
    assert words_of(caught.value) == "squeue: error: Invalid user: ada"


def test_patience_ends(folder: Path) -> None:
    pretend(folder, "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1")
    begun = time.monotonic()
    with pytest.raises(EngineError, match="slurmctld does not answer, scontrol ping tells more") as caught:
        ask(["squeue"], timeout_s=1.2)
    assert time.monotonic() - begun > 0.5
    assert is_passing(caught.value)


def test_a_command_that_hangs_is_given_up(folder: Path) -> None:
    pretend(folder, "exec sleep 60")
    with pytest.raises(EngineError, match=r"squeue did not answer within 0.2 s.*timeout_s") as caught:
        run_command(["squeue"], timeout_s=0.2)
    assert is_passing(caught.value)


def test_commands_see_few_variables_of_the_launcher(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(folder, "env")
    for name in ("SECRET_TOKEN", "SLURM_JOB_ID", "SBATCH_EXPORT", "SQUEUE_FORMAT", "ROPEWALK_ENGINE", "LC_MESSAGES"):
        monkeypatch.setenv(name, "leaked")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/other.conf")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    said = run_command(["squeue"])
    assert "leaked" not in said
    assert {"LC_ALL=C", "SLURM_CONF=/etc/slurm/other.conf"} <= set(said.splitlines())


def test_a_command_that_hangs_is_given_up_with_all_that_it_started(folder: Path) -> None:
    """Many sites put a script in front of the command, and each question left a hanging command behind it."""
    pretend(folder, f"sleep 600 & echo $! > {folder}/child; wait")
    with pytest.raises(EngineError, match="did not answer within 3 s"):
        run_command(["squeue"], timeout_s=3)
    child = int((folder / "child").read_text())
    deadline = time.monotonic() + PATIENCE_S
    while start_ticks(child):
        assert time.monotonic() < deadline, "what the script had started runs on"
        time.sleep(0.01)


def test_an_interrupt_in_the_terminal_does_not_reach_a_command(folder: Path) -> None:
    """It is for the launcher, which then ends its jobs: a second one ended the `scancel` that did so."""
    pretend(folder, "ps -o pgid= -p $$")
    assert int(run_command(["squeue"])) != os.getpgrp()


def test_a_script_reaches_the_command_byte_for_byte(folder: Path) -> None:
    """The name of a folder may be no UTF-8; it came as a question mark, and the job found nothing there."""
    pretend(folder, "od -An -tx1")
    path = b"/home/J\xf6rg/\xc3\xa4"
    assert bytes.fromhex(run_command(["squeue"], stdin=os.fsdecode(path))) == path
