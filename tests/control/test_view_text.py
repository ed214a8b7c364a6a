"""A view in words: what is there is said, and what is not takes no room."""

from __future__ import annotations

import time

from msgspec.structs import replace

from ropewalk.control.view import EventView, ProcessView
from ropewalk.control.view_text import counts, described, event_line, headline, remarks
from tests.control.pretend import view_of


def test_a_program_is_a_line_with_one_for_each_process_and_its_last_events() -> None:
    head, replay, *_, event = described(view_of("train")).splitlines()
    assert head.startswith("train running, pid ") and head.endswith(", processes, up 1m15s: 2 running, 1 completed")
    for words in ("replay.0", "pid 4711", "1m15s", "3.0 GiB", "1234 calls", "7 waiting", "in sample for 2.5 s",
                  "1 restart", "killed by SIGKILL"):  # fmt: skip
        assert words in replay
    assert event == "  replay.0 was started again"


def test_what_is_no_program_says_its_kind_and_its_facts() -> None:
    facts = {"queued": 1200, "tasks_per_s": 3.25, "memory_bytes": 32 << 20}
    view = replace(view_of("pool-1"), kind="pool", facts=facts, processes=(), events=())
    assert headline(view).endswith(", pool, up 1m15s: no processes")
    assert described(view).splitlines()[1:] == ["  queued 1,200, tasks/s 3.25, memory 32 MiB"]
    assert counts(replace(view, kind="program")) == "no nodes"


def test_of_too_many_processes_those_with_news_are_listed() -> None:
    # A pool of 4,096 workers filled the terminal of whoever looked.
    many = [ProcessView(name=f"a.{number}", state="running") for number in range(100)]
    many[70] = replace(many[70], state="failed")
    many[90] = replace(many[90], restarts=1)
    many[95] = replace(many[95], straggler=True)
    view = replace(view_of("train"), processes=tuple(many), events=(), facts={})
    lines = described(view, 4).splitlines()[1:]
    assert [line.split()[0] for line in lines[:4]] == ["a.0", "a.70", "a.90", "a.95"]
    assert lines[4:] == ["  and 96 more; ropewalk ps train lists all"]
    assert "100 more" not in described(view) and len(described(view, 100).splitlines()) == 101


def test_lone_processes_have_nothing_that_is_counted() -> None:
    view = replace(
        view_of("s-processes"), kind="processes", processes=(ProcessView(name="Process.1", is_counted=False),), facts={}
    )
    assert "done" not in described(view) and "waiting" not in described(view)


def test_an_event_has_its_local_time_if_that_is_known() -> None:
    noon = time.mktime((2026, 1, 2, 12, 0, 0, 0, 0, -1))
    assert event_line(EventView(at=noon, text="it died")) == "12:00:00 it died"
    assert event_line(EventView(text="it died")) == "it died"


def test_a_long_cause_stays_in_one_line() -> None:
    (shown,) = remarks(ProcessView(name="a.0", last_cause="line one\nline two " + 500 * "x"))
    assert "\n" not in shown and len(shown) == 120 and shown.endswith("…")


def test_a_straggler_is_said_to_be_one_and_nothing_is_said_of_a_process_that_never_ran() -> None:
    assert remarks(ProcessView(name="a.0", straggler=True)) == ["slower than the others"]
    assert remarks(ProcessView(name="a.0")) == []
