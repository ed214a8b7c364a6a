from __future__ import annotations

from ropewalk.control.view import ProcessView
from ropewalk.page.process_dialog import process_facts


def test_facts_without_a_value_are_left_out():
    assert process_facts(ProcessView(name="w")) == {"host": "this host", "done": "0", "heard of": "now"}


def test_facts_have_units():
    process = ProcessView(
        name="w",
        host="n\x1b7",
        pid=5,
        uptime_s=61.2,
        memory_bytes=2**31,
        cpu_s=2.0,
        done=1234,
        silent_s=7.4,
        restarts=1,
    )
    assert process_facts(process) == {
        "host": "n\\x1b7", "pid": "5", "up for": "1m01s", "memory": "2.0 GiB", "CPU time": "2 s", "done": "1,234",
        "heard of": "7 s ago", "restarts": "1",
    }  # fmt: skip
