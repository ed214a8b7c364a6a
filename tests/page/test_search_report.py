"""The pictures and the table of a search, in its report."""

from __future__ import annotations

from ropewalk.html_table import StateCell
from ropewalk.page.report_document import ReportChart
from ropewalk.page.search_report import search_charts, trial_table
from ropewalk.page.style import Style
from ropewalk.search.results import SearchResults
from tests.search.test_results import results, trial


def several(num: int = 12) -> SearchResults:
    return results(
        *(trial(n, n / num, hyperparameters={"x": n, "act": "relu", "<lr>": 10.0**-n},
                scores={float(s): s * n / num for s in range(1, 4)}) for n in range(num)),
        trial(num, None, state="failed", why="it was killed", hyperparameters={"x": 99}),
    )  # fmt: skip


def charts(found: SearchResults) -> dict[str, ReportChart]:
    return {chart.title: chart for chart in search_charts(found)}


def test_a_search_has_the_pictures_of_its_page() -> None:
    found = charts(several())
    options = {title: chart.option(Style()) for title, chart in found.items()}
    assert {title for title, option in options.items() if not option} == {"Rungs", "Pareto front"}
    best = options["History"]["series"][-1]["data"]
    assert best[-1] == [11, 11 / 12]
    assert len(options["Configurations"]["series"][0]["data"]) == 12
    assert {axis["name"] for axis in options["Configurations"]["parallelAxis"]} == {"x", "<lr>", "score"}
    assert options["Trials"]["series"]  # the panel that a running search shows


def test_two_objectives_have_a_front() -> None:
    found = results(
        *(trial(n, float(n), values={"score": float(n), "speed": 5.0 - n}) for n in range(5)),
        metrics=("score", "speed"),
    )
    front = charts(found)["Pareto front"].option(Style())["series"][-1]["data"]
    assert len(front) == 5


def test_promotions_are_told_from_the_book() -> None:
    lines = [["start", 0, {}, 1.0, 0], ["start", 1, {}, 1.0, 0], ["promote", 1, 3.0]]
    found = {chart.title: chart for chart in search_charts(several(2), lines)}
    labels = found["Rungs"].option(Style())["xAxis"]["data"]
    assert labels == ["step 1\n1 of 2", "step 3\n0 of 1"]


def test_trials_are_listed_from_the_best_on_with_the_reasons_of_failures() -> None:
    table = trial_table(several())
    rows = [dict(zip(table.head, row, strict=True)) for row in table.rows]
    assert [row["trial"] for row in rows[:3]] == ["11", "10", "9"]
    assert rows[-1]["state"] == StateCell("failed") and rows[-1]["why"] == "it was killed"
    assert rows[0]["act"] == "relu" and rows[0]["<lr>"] == "1e-11"
