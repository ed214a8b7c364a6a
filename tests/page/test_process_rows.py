from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from ropewalk.control.view import ProcessView
from ropewalk.page.process_rows import changes, process_rows
from ropewalk.page.thing_header import header_facts
from ropewalk.page.watcher import ViewSample
from tests.page.seen_views import seen_of, view


def test_a_row_has_shares_and_rates_of_the_last_seconds():
    looks = [
        view(ProcessView(name="w", state="running", cpu_s=0.9 * t, done=int(3 * t), memory_bytes=2**30), at=t)
        for t in (1.0, 2.0, 3.0, 20.0, 21.0)
    ]
    row = process_rows(seen_of(*looks))["w"]
    assert (row["cpu"], row["rate"], row["memory"], row["look"], row["host"]) == (0.9, 3.0, 1024, "good", "this host")


class LookedAtMeanwhile:
    """A sample during whose use the thread of the watcher adds another one."""

    processes: Mapping[str, tuple[int, float, int]] = {}

    def __init__(self, samples: deque[Any]) -> None:
        self._samples = samples

    @property
    def at(self) -> float:
        self._samples.append(ViewSample(9.0, {}, {}))
        return 1.0


def test_a_look_may_come_while_rows_are_made():
    seen = seen_of(view(ProcessView(name="w")))
    samples: deque[Any] = seen.samples
    samples.extend([LookedAtMeanwhile(samples), ViewSample(2.0, {}, {})])
    assert set(process_rows(seen)) == {"w"}


def test_a_process_that_was_seen_once_has_no_share():
    row = process_rows(seen_of(view(ProcessView(name="w"))))["w"]
    assert (row["cpu"], row["rate"], row["doing_s"]) == (None, None, None)


def test_what_answers_no_calls_has_no_count_and_no_rate():
    looks = [view(ProcessView(name="w", is_counted=False), at=t) for t in (1.0, 2.0)]
    row = process_rows(seen_of(*looks))["w"]
    assert row["done"] is row["rate"] is None and row["cpu"] == 0


def test_processes_of_a_launcher_that_was_killed_are_not_shown_as_running():
    processes = ProcessView(name="a", state="running"), ProcessView(name="b", state="completed")
    seen = seen_of(view(*processes))
    seen.gone = True
    assert {row["name"]: (row["state"], row["look"]) for row in process_rows(seen).values()} == {
        "a": ("gone", "muted"), "b": ("completed", "good"),
    }  # fmt: skip
    assert "processes up" not in header_facts(seen)
    stopped = seen_of(view(*processes, state="stopped"))
    stopped.gone = True
    assert process_rows(stopped)["a"]["state"] == "running"  # as the launcher itself said at its end


def test_only_what_changed_is_sent():
    old = process_rows(seen_of(view(ProcessView(name="a", done=1), ProcessView(name="b"), ProcessView(name="c"))))
    new = process_rows(seen_of(view(ProcessView(name="a", done=2), ProcessView(name="b"), ProcessView(name="d"))))
    assert changes(old, new) == ([{"name": "a", "done": 2}, new["d"]], ["c"])
    assert changes(new, new) == ([], [])


def test_noise_below_what_is_shown_is_no_change():
    looks = [view(ProcessView(name="a", silent_s=silent_s, memory_bytes=2**30 + 100)) for silent_s in (0.2, 0.4)]
    assert changes(process_rows(seen_of(looks[0])), process_rows(seen_of(looks[1]))) == ([], [])


def test_texts_of_processes_are_escaped_and_cut():
    row = process_rows(seen_of(view(ProcessView(name="\x1b[2Jw", doing="x" * 1000, last_cause="a\nb"))))["\x1b[2Jw"]
    assert (row["name"], row["cause"], len(row["doing"])) == ("\\x1b[2Jw", "a\\nb", 300)


def test_the_last_end_is_told_without_the_name_that_is_in_the_row_already():
    told = "w.1 on host n17 (pid 23) was killed by SIGSEGV after 9.4 s, in task 41, which had run for 0.4 s"
    rows = process_rows(
        seen_of(
            view(
                ProcessView(name="w.1", last_cause=told), ProcessView(name="w", last_cause=told.replace("w.1", "w.10"))
            )
        )
    )
    assert [row["cause"] for row in rows.values()] == [
        "killed by SIGSEGV after 9.4 s, in task 41, which had run for 0.4 s",
        "w.10 on host n17 (pid 23) was killed by SIGSEGV after 9.4 s, in task 41, which had run for 0.4 s",
    ]
