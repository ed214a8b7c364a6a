"""The record of decisions over deaths of the learner, and where it cannot be written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropewalk.rl.decision_log import DecisionLog, read_decisions
from ropewalk.rl.replay.insertion import Insertion


def insertion(sequence: int) -> Insertion:
    return Insertion("0#0", sequence, {"value": np.zeros(1)}, {}, version=7)


def log_at(path: Path) -> DecisionLog:
    log = DecisionLog(path, "an experiment", 2)
    log.publish(0, 0)
    return log


def events(path: Path) -> list[Any]:
    return read_decisions(path, "an experiment")[1]


def test_decisions_are_read_as_they_were_made(tmp_path: Path) -> None:
    log = log_at(tmp_path / "record")
    log.insert(insertion(0))
    log.insert(insertion(1), stale=True)
    log.sample(4)
    log.update_priorities()
    log.close()
    log.close()
    assert events(tmp_path / "record") == [
        ["publish", 0, 0],
        ["insert", "0#0", 0, 7],
        ["stale", "0#0", 1, 7],
        ["sample", 4],
        ["priorities"],
    ]


def test_a_learner_that_dies_before_it_has_done_anything_leaves_the_record_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "record"
    first = log_at(path)
    first.insert(insertion(0))
    early = first.position()
    first.insert(insertion(1))
    late = first.position()
    first.insert(insertion(2))
    first.close()
    log = first
    for _ in range(2):  # each of them dies after it has loaded its state, the second one twice: from both checkpoints
        log = log_at(path)
        log.go_back(early)
        log.go_back(late)
    log.publish(8, 5)
    log.insert(insertion(2))
    log.close()
    assert events(path)[1:] == [
        ["insert", "0#0", 0, 7],
        ["insert", "0#0", 1, 7],
        ["publish", 8, 5],
        ["insert", "0#0", 2, 7],
    ]


def test_a_new_run_replaces_the_record(tmp_path: Path) -> None:
    for number in (3, 4):
        log = log_at(tmp_path / "record")
        log.sample(number)
        log.close()
    assert events(tmp_path / "record") == [["publish", 0, 0], ["sample", 4]]


@pytest.mark.parametrize("position", [0, 1_000])
def test_a_checkpoint_without_its_record_is_refused(position: int, tmp_path: Path) -> None:
    log = log_at(tmp_path / "record")
    log.sample(1)
    log.close()
    again = log_at(tmp_path / "record")
    with pytest.raises(ValueError, match=rf"has \d+ bytes.*needs the first\s+{position} of its record"):
        again.go_back(position)


def test_a_full_disk_is_said_once_and_nothing_is_recorded_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "record"
    path.symlink_to("/dev/full")
    log = log_at(path)
    log.insert(insertion(0))
    assert log.position() == -1
    log.insert(insertion(1))
    log.close()
    (told,) = caplog.messages
    assert "are not recorded in" in told and "training goes on" in told
    log_at(path).go_back(-1)
    assert "was not written to its end" in caplog.messages[-1]


def test_lines_are_json_that_anybody_can_read(tmp_path: Path) -> None:
    log = log_at(tmp_path / "record")
    log.sample(1)
    log.close()
    lines = (tmp_path / "record").read_text().splitlines()
    assert [json.loads(line)[0] for line in lines] == ["begin", "publish", "sample"]


def test_a_line_that_a_killed_run_left_unfinished_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "record"
    log = log_at(path)
    log.sample(1)
    log.close()
    path.write_bytes(path.read_bytes() + b'["insert","0#0",1')
    assert events(path) == [["publish", 0, 0], ["sample", 1]]
    assert "ends in the middle of line 4" in caplog.text


def test_a_line_that_is_damaged_elsewhere_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "record"
    log = log_at(path)
    log.sample(1)
    log.close()
    path.write_bytes(path.read_bytes().replace(b'["publish",0,0]', b'["publish",0'))
    with pytest.raises(ValueError, match="line 2"):
        events(path)
