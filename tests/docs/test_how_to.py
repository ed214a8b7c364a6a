"""The pages of docs/how-to answer one question each, and stay short; `test_pages.py` runs their code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ropewalk.tracking.interruptions import RunPaused, RunStopped, RunTerminated

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "how-to"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "index.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_answers_one_question_shortly(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert lines[0].startswith("# ") and lines[0].endswith("?")
    assert sum(line.startswith("# ") and not line.startswith("#!") for line in _outside_of_code(lines)) == 1
    assert len(lines) <= 60


def test_the_index_has_every_page() -> None:
    rows = re.findall(r"^\| (.*?) \| \[.*?\]\((.*?)\) \|$", (FOLDER / "index.md").read_text(), re.MULTILINE)
    titles = {page.name: page.read_text().splitlines()[0].removeprefix("# ") for page in PAGES}
    assert {name: question for question, name in rows} == titles


def test_a_service_whose_run_was_paused_or_stopped_is_not_started_again() -> None:
    # systemd took these ends for failures, and half a minute later the run went on.
    (unit,) = re.findall(r"^```ini\n(.*?)^```", (FOLDER / "long-runs.md").read_text(), re.MULTILINE | re.DOTALL)
    settings = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and not line.startswith("#"))
    assert settings["Restart"] == "on-failure"
    ends = (RunPaused, RunStopped, RunTerminated)
    assert set(map(int, settings["SuccessExitStatus"].split())) == {end.exit_code for end in ends}


def _outside_of_code(lines: list[str]) -> list[str]:
    found: list[str] = []
    inside = False
    for line in lines:
        if line.startswith("```"):
            inside = not inside
        elif not inside:
            found.append(line)
    return found
