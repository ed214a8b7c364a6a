"""The log of decisions, as a run that was killed leaves it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.rl.decision_log import DecisionLog, read_decisions


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "record"
    log = DecisionLog(path, "an experiment", 2)
    log.publish(0, 0)
    log.sample(4)
    log.close()
    return path


def test_what_was_written_is_read(path: Path) -> None:
    assert read_decisions(path, "an experiment") == (2, [["publish", 0, 0], ["sample", 4]])


def test_a_line_that_a_killed_run_left_unfinished_is_left_out(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(path.read_bytes() + b'["insert","0#0",1')
    assert read_decisions(path, "an experiment") == (2, [["publish", 0, 0], ["sample", 4]])
    assert "ends in the middle of line 4" in caplog.text


def test_a_line_that_is_damaged_elsewhere_is_an_error(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'["publish",0,0]', b'["publish",0'))
    with pytest.raises(ValueError, match="line 2"):
        read_decisions(path, "an experiment")
