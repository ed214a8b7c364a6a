"""The first program of the page on tracking does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ropewalk.tracking import RunStore

PAGE = Path(__file__).parents[2] / "docs" / "tracking.md"


def test_the_five_lines_keep_a_run(store: RunStore, store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_STORE", str(store_path))
    program = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    assert [line.rpartition("#")[2] for line in program.splitlines() if "  # " in line] == [
        f" {n}" for n in range(1, 6)
    ]
    exec(compile(program, str(PAGE), "exec"), {"__name__": "__main__"})
    (run,) = store.runs("sums")
    losses = store.points(run.id, "loss").values
    assert run.state == "done" and run.config == {"lr": 0.05}
    assert len(losses) == 200 and losses[-1] < losses[0] / 2
    assert [one.step for one in store.checkpoints(run.id)] == [200]
