"""The report of something that runs."""

from __future__ import annotations

from typing import Any

from ropewalk.control.view import EventView, ProcessView, View
from ropewalk.html_table import StateCell
from ropewalk.page.report_document import ReportChart, ReportDocument, ReportTable
from ropewalk.page.style import Style
from ropewalk.page.view_report import view_document
from ropewalk.page.watcher import Seen

START = 1_700_000_000.0


def seen(**changes: Any) -> Seen:
    fields: dict[str, Any] = {
        "kind": "pool", "name": "es", "id": "a", "pid": 12, "state": "running", "started": START, "at": START + 90,
        "processes": (
            ProcessView(name="es.0", state="running", pid=7, done=1234, memory_bytes=300 << 20, cpu_s=3.25),
            ProcessView(name="es.1", state="running", straggler=True, last_cause="it was killed", restarts=1),
        ),
        "events": (EventView(at=START, kind="join", text="first"), EventView(text="second", process="es.1")),
    }  # fmt: skip
    return Seen(View(**{**fields, **changes}))


def table(document: ReportDocument, title: str) -> ReportTable:
    (found,) = [part for part in document.parts if isinstance(part, ReportTable) and part.title == title]
    return found


def test_the_header_has_what_the_view_knows() -> None:
    one = seen(facts={"memory_bytes": 2**30, "mode": "threads"}, run="r1", progress=0.25, last_failure="it died")
    one.problem = "it does not answer"
    document = view_document(one, START + 100, (START + 1, START + 3.5))
    facts = dict(document.facts)
    expected = {
        "running for": "1m30s", "launcher": "pid 12", "run": "r1", "progress": "25 %", "recorded": "2.5 s",
        "memory": "1.0 GiB", "mode": "threads",
    }  # fmt: skip
    assert {name: facts[name] for name in expected} == expected
    assert (document.name, document.kind, document.state) == ("es", "pool", "running")
    assert document.failure == "it died\nit does not answer"


def test_what_has_gone_without_an_end_has_ended() -> None:
    one = seen()
    one.gone = True
    assert view_document(one, START).state == "ended"


def test_processes_are_rows_with_numbers_to_sort_by() -> None:
    found = table(view_document(seen(), START), "Processes")
    first, second = (dict(zip(found.head, row, strict=True)) for row in found.rows)
    assert first["done"] == "1,234" and first["memory"] == "300 MiB" and first["state"] == StateCell("running")
    assert second["state"] == StateCell("running, slow") and second["last end"] == "it was killed"
    assert found.keys and found.keys[found.head.index("memory")] == [float(300 << 20), 0.0]


def test_events_are_listed_from_the_latest_on() -> None:
    rows = table(view_document(seen(), START), "Events").rows
    assert [row[-1] for row in rows] == ["second", "first"]
    assert rows[0][0] == ""  # nobody knows when it was


def test_events_whose_time_is_known_are_on_a_time_line() -> None:
    (chart,) = [part for part in view_document(seen(), START).parts if isinstance(part, ReportChart)]
    option = chart.option(Style())
    assert [series["name"] for series in option["series"]] == ["join"]
    assert option["xAxis"]["min"] == START * 1e3


def test_a_picture_of_each_panel_with_data_is_drawn_by_the_function_of_the_page() -> None:
    one = seen(offers=("tasks", "stream"))
    one.panels["tasks"] = {"queued": 1, "done": 5}
    chart, _ = [part for part in view_document(one, START).parts if isinstance(part, ReportChart)]
    assert chart.title == "Tasks"
    assert chart.option(Style())["series"][0]["data"] == [5]


def bars_of(recorded: tuple[float, float] | None, *tasks: list[Any]) -> list[str]:
    """The tasks that the stream of a report shows, by their functions."""
    one = seen(offers=("stream",), events=())
    one.panels["stream"] = {"now": START + 100, "tasks": list(tasks)}
    (chart,) = [part for part in view_document(one, START, recorded).parts if isinstance(part, ReportChart)]
    shown = chart.option(Style())
    begin, end = shown["xAxis"]["min"] / 1e3, shown["xAxis"]["max"] / 1e3
    assert all(begin <= task[2] for task in tasks if recorded is None) and end >= START + 100
    return [series["name"] for series in shown["series"] if series["data"]]


def test_the_whole_stream_is_shown_and_of_a_block_what_was_in_it() -> None:
    early = ["es.0", "early", START, START + 1, 1, "ok"]
    late = ["es.0", "late", START + 50, START + 51, 1, "ok"]
    assert set(bars_of(None, early, late)) == {"early", "late"}
    assert set(bars_of((START + 40, START + 100), early, late)) == {"late"}
