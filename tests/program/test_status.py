"""Statuses are values that turn into JSON and into words."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ropewalk.program.status import NodeStatus, shown_duration
from ropewalk.quantities import shown_size
from tests.program.pretend import status_of


def test_a_status_is_plain_data_in_json() -> None:
    plain = json.loads(json.dumps(status_of("train").to_json()))
    assert (plain["name"], plain["mode"], len(plain["nodes"])) == ("train", "processes", 3)
    assert plain["nodes"][0]["calls_running"] == [{"method": "sample", "running_s": 2.5}]
    assert plain["nodes"][0] == status_of("train").nodes[0].to_json()


def test_a_status_says_what_is_worth_knowing_in_words() -> None:
    head, replay, *_, event = status_of("train").describe().splitlines()
    assert head.startswith("train running, pid ") and head.endswith(": 2 running, 1 completed")
    for words in ("replay.0", "pid 4711", "1m15s", "3.0 GiB", "1234 calls, 7 waiting", "in sample for 2.5s",
                  "1 restart", "killed by SIGKILL"):  # fmt: skip
        assert words in replay
    assert event == "  replay.0 was started again"


def test_a_long_cause_stays_in_one_line() -> None:
    node = replace(status_of("train").nodes[0], last_cause="line one\nline two " + 500 * "x")
    assert "\n" not in node.describe() and len(node.describe()) < 300


def test_a_node_that_never_ran_has_no_remarks() -> None:
    assert NodeStatus(name="a", replica=0, kind="worker", state="waiting").remarks() == []


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0.0s"), (9.94, "9.9s"), (9.96, "10s"), (59.4, "59s"), (59.6, "1m00s"), (3599.7, "1h00m"), (90000, "1d01h")],
)
def test_durations_are_short(seconds: float, words: str) -> None:
    assert shown_duration(seconds) == words


def test_sizes_are_short() -> None:
    assert [shown_size(n) for n in (0, 1536, 5 << 20, 3 << 29)] == ["0 MiB", "1.5 KiB", "5 MiB", "1.5 GiB"]
