"""The example discovers a schedule, draws it, and trains it again to the same weights; with a folder it goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.needed_packages import needs
from tests.patience import PROGRAM_S

needs("sklearn", "matplotlib")

EXAMPLE = Path(__file__).parents[2] / "examples" / "pbt_digits.py"


def discover(folder: Path, *arguments: str) -> tuple[list[str], dict[str, Any]]:
    """Run the example in a process of its own; its lines, and its summary."""
    small = ["--workers", "1", "--population", "4", "--interval", "1"]
    command = [sys.executable, EXAMPLE, *small, *arguments, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PROGRAM_S)
    # A run says where it is once a minute, if it takes that long.
    told = [line for line in done.stderr.splitlines() if ": generation " not in line]
    assert (done.returncode, told) == (0, []), done.stdout
    *lines, last = done.stdout.splitlines()
    return lines, json.loads(last)


@pytest.mark.soak  # two processes that import scikit-learn: five seconds
def test_a_schedule_is_discovered_and_trained_again(tmp_path: Path) -> None:
    lines, summary = discover(tmp_path, "--epochs", "2", "--again", "--synchronous", "--picture", "")
    assert summary["accuracy"] > 0.8 and summary["copies"] > 0
    assert summary["same"] is True
    assert summary["evaluations"] == 8
    assert any(line.startswith("  epochs   0 to") for line in lines)


@pytest.mark.soak  # each interval waits for a disk
def test_a_schedule_is_drawn_and_a_folder_has_states_and_checkpoints(tmp_path: Path) -> None:
    lines, summary = discover(tmp_path, "--epochs", "4", "--again", "--synchronous", "--folder", "run")
    assert summary["accuracy"] > 0.85 and summary["copies"] > 0
    assert summary["same"] is True
    assert summary["evaluations"] == 16
    assert any(line.startswith("  epochs   0 to") for line in lines)
    assert (tmp_path / "pbt_schedule.png").read_bytes().startswith(b"\x89PNG")
    assert list((tmp_path / "run" / "members").glob("member-*.state"))
    assert list((tmp_path / "run" / "checkpoints").iterdir())
