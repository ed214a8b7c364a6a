"""Runs of a store, as a notebook shows them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ropewalk.tracking.records import RunRecord
from ropewalk.tracking.store.rows import LOST, AttemptRow
from tests.tracking.store.making import created, new_store

BAD = "<script>alert(1)</script>\x1b[2J"


def test_a_notebook_shows_a_run_and_its_settings_as_text(tmp_path: Path) -> None:
    with new_store(tmp_path) as store:
        store.apply([RunRecord("a", created(name=BAD, config={BAD: BAD, "lr": 0.1}))])
        shown = store.run("a")._repr_html_()
    assert "alert(1)" in shown and "0.1" in shown and "digits" in shown
    assert "<script" not in shown and "\x1b" not in shown


def test_a_notebook_shows_the_latest_runs_of_a_store(tmp_path: Path) -> None:
    with new_store(tmp_path) as store:
        store.apply([RunRecord(f"r{n:02}", created(name=f"name-{n}<b>", time=1000.0 + n)) for n in range(30)])
        shown = store._repr_html_()
    assert "30 runs" in shown
    assert shown.count("<tr>") == 21
    assert shown.index("r29") < shown.index("r10")
    assert ">r09<" not in shown and "<b>" not in shown


@pytest.mark.parametrize(("state", "seconds"), [("running", 9.3), ("queued", 9.3), ("paused", 4.0), ("done", 4.0)])
def test_a_run_lasts_until_now_or_until_it_took_its_last_state(tmp_path: Path, state: str, seconds: float) -> None:
    with new_store(tmp_path) as store:
        store.apply([RunRecord("a", created(time=100.0))])
        row = replace(store.run("a"), state=state, changed=104.0, heard=106.5)
    assert row.lasted_s(109.3) == seconds
    assert replace(row, state=LOST).lasted_s(109.3) == 6.5


def test_an_attempt_that_seems_to_have_ended_before_it_began_took_no_time() -> None:
    # Its end was seen by a host whose clock was an hour behind: "-3.6e+09 µs".
    attempt = AttemptRow(1, "h", 7, 5000.0, 0.0, "lost", 1400.0, "", "", None)
    assert attempt.lasted_s(9000.0) == 0.0
    assert replace(attempt, ended=5001.26).lasted_s(9000.0) == 1.3
    assert replace(attempt, ended=None).lasted_s(5002.0) == 2.0
