"""Statuses are values that turn into JSON and into words."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from ropewalk.program.status import NodeCall, NodeStatus, ProgramStatus


def status_of(name: str) -> ProgramStatus:
    """A program of three replicas, one of which was restarted and is in a call."""
    return ProgramStatus(
        name=name,
        run_id="run",
        pid=os.getpid(),
        state="running",
        mode="processes",
        started=1_700_000_000.0,
        nodes=(
            NodeStatus(
                name="replay",
                replica=0,
                kind="service",
                state="running",
                generation=1,
                pid=4711,
                host="here",
                restarts=1,
                uptime_s=75.0,
                memory_bytes=3 << 30,
                cpu_s=4.5,
                calls_done=1234,
                calls_waiting=7,
                calls_running=(NodeCall("sample", 2.5),),
                last_cause="killed by SIGKILL",
            ),
            NodeStatus(name="actor", replica=0, kind="worker", state="running"),
            NodeStatus(name="actor", replica=1, kind="worker", state="completed"),
        ),
        events=("replay.0 was started again",),
    )


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


@pytest.mark.parametrize(
    ("kind", "calls_done", "expected"),
    [("worker", 0, False), ("rank_group", 0, False), ("worker", 3, True), ("service", 0, True), ("cache", 0, True)],
)
def test_calls_of_nodes_that_answer_none_are_not_counted(kind: str, calls_done: int, expected: bool) -> None:
    node = NodeStatus(name="a", replica=0, kind=kind, state="running", calls_done=calls_done)
    assert node.as_process().is_counted is expected


def test_a_node_in_one_line_says_no_more_than_is_known() -> None:
    shown = NodeStatus(name="a", replica=0, kind="worker", state="waiting").describe()
    assert shown.split() == ["a.0", "worker", "waiting", "pid", "-", "0", "s", "0", "MiB"], "it answers no calls"


def test_relayed_connections_are_shown() -> None:
    shown = replace(status_of("train"), ways=("n1 and n2 meet at n3", "n1 and n4 meet at n3")).describe()
    assert "  n1 and n2 meet at n3; n1 and n4 meet at n3" in shown.splitlines()


def test_a_notebook_shows_a_program_as_a_table() -> None:
    status = replace(status_of("train<script>"), events=("it was <b>killed</b>",))
    shown = status._repr_html_()
    for words in ("train&lt;script&gt;", "replay.0", "1,234", "3.0 GiB", "in sample for 2.5 s; 1 restart", "&lt;b&gt;"):
        assert words in shown
    assert "<script" not in shown and "<b>" not in shown
    assert shown.count("<tr>") == 4
