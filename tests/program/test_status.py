"""Statuses are values that turn into JSON and into words."""

from __future__ import annotations

import json
from dataclasses import replace

from ropewalk.program.status import NodeStatus
from tests.control.pretend import status_of


def test_a_status_is_plain_data_in_json() -> None:
    plain = json.loads(json.dumps(status_of("train").to_json()))
    assert (plain["name"], plain["mode"], len(plain["nodes"])) == ("train", "processes", 3)
    assert plain["nodes"][0]["calls_running"] == [{"method": "sample", "running_s": 2.5}]
    assert plain["nodes"][0] == status_of("train").nodes[0].to_json()


def test_a_status_says_what_is_worth_knowing_in_words() -> None:
    head, replay, *_, event = status_of("train").describe().splitlines()
    assert head.startswith("train running, pid ") and head.endswith(": 2 running, 1 completed")
    for words in ("replay.0", "pid 4711", "1m15s", "3.0 GiB", "1234 calls", "7 waiting", "in sample for 2.5 s",
                  "1 restart", "killed by SIGKILL"):  # fmt: skip
        assert words in replay
    assert event == "  replay.0 was started again"


def test_a_long_cause_stays_in_one_line() -> None:
    node = replace(status_of("train").nodes[0], last_cause="line one\nline two " + 500 * "x")
    assert "\n" not in node.describe() and len(node.describe()) < 300


def test_a_node_that_never_ran_has_no_remarks() -> None:
    assert NodeStatus(name="a", replica=0, kind="worker", state="waiting").remarks() == []
