"""`ropewalk report`: of what another process runs, and of a run of the store."""

from __future__ import annotations

import itertools
import json
import signal
import threading
from pathlib import Path

import pytest

from ropewalk.tracking.records import Metrics, RunRecord
from tests.cli.command import ropewalk, start_ropewalk
from tests.control.pretend import Pretence, controlled
from tests.lab.plugin import require_packages
from tests.patience import PATIENCE_S
from tests.tracking.store.making import NOW, created, new_store


@pytest.fixture(autouse=True)
def _needs_echarts() -> None:  # pyright: ignore[reportUnusedFunction]
    require_packages("nicegui")


def test_what_another_process_runs_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "walk.html"
    with controlled(Pretence("walk-report")):
        done = ropewalk("report", "walk-report", "-o", str(file), "--record", "0", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"file": str(file)}
    text = file.read_text()
    assert "walk-report" in text and "replay.0" in text and "killed by SIGKILL" in text


def test_ctrl_c_ends_the_recording_and_the_file_is_written(tmp_path: Path) -> None:
    target, file = Pretence("walk-long"), tmp_path / "walk.html"
    recording, looks = threading.Event(), itertools.count(1)
    target.before_view = lambda: next(looks) > 2 and recording.set()
    with controlled(target):
        command = start_ropewalk("report", "walk-long", "-o", str(file), "--record", "inf", folder=tmp_path)
        assert recording.wait(PATIENCE_S)
        command.send_signal(signal.SIGINT)
        said, problems = command.communicate(timeout=PATIENCE_S)
    assert (command.returncode, said, problems) == (0, f"{file}\n", "")
    assert "walk-long" in file.read_text()


def test_a_run_of_the_store_is_reported_in_a_file_with_its_name(tmp_path: Path) -> None:
    with new_store(tmp_path) as store:
        store.apply([RunRecord("a1", created(name="../brisk otter<b>"))])
        store.apply([RunRecord("a1", Metrics("", ["loss"], [0.5 / n], n, NOW)) for n in range(1, 4)])
        where = store.where
    done = ropewalk("report", "a1", "--store", where, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "brisk_otter_b-report.html\n"), done.stderr
    assert "brisk otter&lt;b&gt;" in (tmp_path / "brisk_otter_b-report.html").read_text()


def test_what_is_neither_running_nor_in_the_store_is_told_with_what_is(tmp_path: Path) -> None:
    with new_store(tmp_path) as store:
        store.apply([RunRecord("a1", created(name="brisk-otter"))])
        where = store.where
    with controlled(Pretence("walk-there")):
        done = ropewalk("report", "brisk-ottar", "--store", where, folder=tmp_path)
    assert done.returncode == 2
    assert "walk-there" in done.stderr and "brisk-otter" in done.stderr
    assert not list(tmp_path.glob("*.html"))


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with controlled(Pretence("walk-nowhere")):
        done = ropewalk("report", "walk-nowhere", "-o", str(tmp_path / "no" / "walk.html"), "--record", "0")
    assert done.returncode == 1
    assert "walk.html" in done.stderr and "Traceback" not in done.stderr


def test_a_dash_is_the_standard_output_and_no_file(tmp_path: Path) -> None:
    with new_store(tmp_path) as store:
        store.apply([RunRecord("a1", created(name="brisk otter"))])
        where = store.where
    done = ropewalk("report", "a1", "--store", where, "-o", "-", folder=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("<!DOCTYPE html>") and "brisk otter" in done.stdout
    exported = ropewalk("runs", "export", "a1", "--store", where, "-o", "-", folder=tmp_path)
    assert exported.stdout.startswith("run,group,name,step")
    assert not (tmp_path / "-").exists()
