"""`ropewalk runs show` of a search: its best trials, and which hyperparameters matter."""

from __future__ import annotations

from pathlib import Path

from ropewalk.cli.runs_search import results_of, search_parts
from ropewalk.cli.runs_tables import as_text
from ropewalk.search.results import SearchResults, TrialResult
from ropewalk.tracking.records import EventHappened
from tests.tracking.store.making import NOW, begin, new_store

RED = "\x1b[31m"
LINES = [
    ["start", 0, {"rate": 0.5}, None, 0], ["report", 0, 1, [3.0]], ["end", 0],
    ["start", 1, {"rate": 0.125}, None, 0], ["report", 1, 1, [1.0]], ["end", 1],
]  # fmt: skip


def trial(number: int, rate: float) -> TrialResult:
    return TrialResult(
        number, f"s-{number}", "done", {"rate": rate, "other": RED}, 3.0, {"loss": rate}, rate, 1, 0, {}, "", Path("/n")
    )


def test_the_best_trials_of_a_search_are_read_from_the_store(tmp_path: Path) -> None:
    with new_store(tmp_path) as store:
        decisions = [EventHappened("decision", "", NOW, {"line": line}) for line in LINES]
        config = {"metric": ["loss"], "mode": ["min"], "scheduler": "NoScheduler()"}
        begin(store, "bb22", *decisions, kind="search", config=config)
        begin(store, "aa11", kind="script")
        begin(store, "cc33", kind="search", config={"metric": "of another program"})
        assert results_of(store, store.run("aa11")) is results_of(store, store.run("cc33")) is None
        results = results_of(store, store.run("bb22"))
    assert results is not None
    ((heading, rows),) = search_parts(results)
    assert heading == "best trials" and not isinstance(rows, str)
    head, first, second = (line.split() for line in as_text(rows).splitlines())
    assert head == ["trial", "best", "loss", "step", "state", "id", "rate"]
    assert first == ["1", "1", "1", "done", "bb22-1", "0.125"] and second[0] == "0"


def test_the_importance_of_hyperparameters_is_shown_as_shares() -> None:
    results = SearchResults([trial(number, number / 32) for number in range(12)], ["loss"], ["min"], "s", "s")
    best, importance = search_parts(results)
    assert RED not in as_text(best[1]), "names and values come from processes"  # pyright: ignore[reportArgumentType]
    assert as_text(importance[1]).splitlines()[1].split() == ["rate", "100%"]  # pyright: ignore[reportArgumentType]
