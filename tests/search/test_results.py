"""The table of a search: order, the Pareto front, records, words and pictures."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from ropewalk.errors import SearchFailed
from ropewalk.population import Uniform
from ropewalk.search import ASHA, AdaptiveASHA, Hyperband, MedianStopping, StoppingASHA
from ropewalk.search.importance import importances
from ropewalk.search.optuna_names import (
    ARGUMENTS,
    OF_ASHA,
    OF_HYPERBAND,
    OF_MEDIAN_STOPPING,
    OF_RESULT,
    OF_RESULTS,
)
from ropewalk.search.results import SearchResults
from ropewalk.search.search import Search
from ropewalk.search.trial_result import TrialResult
from ropewalk.tracking.checkpoints import CheckpointFolder


def trial(number: int, best: float | None, **facts: Any) -> TrialResult:
    values = {} if best is None else {"score": best}
    settings: dict[str, Any] = {
        "run": f"s-{number}", "state": "done", "hyperparameters": {"x": number}, "step": 3.0, "values": values,
        "best": best, "attempts": 1, "bracket": 0, "scores": {} if best is None else {1.0: best}, "why": "",
        "folder": Path("/nowhere"),
    }  # fmt: skip
    return TrialResult(number, **(settings | facts))


def results(*trials: TrialResult, mode: Any = "max", metrics: tuple[str, ...] = ("score",)) -> SearchResults:
    return SearchResults(trials, metrics, (mode,) * len(metrics), "name", "s")


def test_trials_are_ranked_and_those_without_a_value_come_last() -> None:
    table = results(trial(0, None), trial(1, 2.0), trial(2, math.nan), trial(3, 5.0), trial(4, 5.0))
    assert [each.number for each in table.ranked()] == [3, 4, 1, 2, 0]
    assert table.best.number == 3
    assert results(*table, mode="min").best.number == 1


@pytest.mark.parametrize(("mode", "worst"), [("max", -math.inf), ("min", math.inf)])
def test_a_trial_that_has_reported_infinity_is_better_than_one_that_has_not(mode: Any, worst: float) -> None:
    """Whoever asked for the best of them was told that none had reported anything."""
    table = results(trial(0, None), trial(1, math.nan), trial(2, worst), mode=mode)
    assert [each.number for each in table.ranked()] == [2, 1, 0] and table.best.number == 2


def test_a_metric_does_not_hide_a_fact_of_its_trial() -> None:
    """A metric called "step" took the place of the step, and one called "why" was left out."""
    (record,) = results(
        trial(0, 1.0, values={"step": 7.0, "why": 8.0, "loss": 9.0}), metrics=("step", "why", "loss")
    ).to_records()
    assert (record["step"], record["why"], record["loss"]) == (3.0, "", 9.0)
    assert (record["metric.step"], record["metric.why"]) == (7.0, 8.0)


def test_a_search_without_a_value_has_no_best_trial() -> None:
    with pytest.raises(SearchFailed, match="none of the 1 trials of search 'name' has reported 'score'"):
        _ = results(trial(0, None)).best


@pytest.mark.parametrize("mode", ["max", "min"])
def test_a_value_that_is_no_number_surpasses_nothing_on_the_pareto_front(mode: Any) -> None:
    """Such a trial was always on the front, since no comparison with it holds."""
    points = [(1.0, 1.0), (math.nan, 1.0), (1.0, math.nan), (math.nan, math.nan)]
    trials = [trial(n, a, values={"a": a, "b": b}) for n, (a, b) in enumerate(points)]
    assert [each.number for each in results(*trials, metrics=("a", "b"), mode=mode).pareto_front] == [0]


def test_the_pareto_front_has_what_nothing_surpasses() -> None:
    points = [(1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (2.0, 2.0), (3.0, 2.0)]
    trials = [trial(n, a, values={"a": a, "b": b}) for n, (a, b) in enumerate(points)]
    table = results(*trials, trial(9, None), metrics=("a", "b"))
    assert [each.number for each in table.pareto_front] == [1, 2, 4]
    assert [each.number for each in SearchResults(trials, ("a", "b"), ("max", "min"), "", "").pareto_front] == [0, 2, 4]


def test_records_are_flat() -> None:
    record = results(trial(0, 2.0, hyperparameters={"model.width": 3})).to_records()[0]
    assert record["config.model.width"] == 3 and record["score"] == 2.0 and record["trial"] == 0


def test_a_long_table_is_cut_and_says_so() -> None:
    lines = str(results(*(trial(number, float(number)) for number in range(30)))).splitlines()
    assert lines[1].split()[0] == "29" and lines[-1] == "and 10 others" and len(lines) == 22


def test_names_and_values_in_tables_are_escaped() -> None:
    assert "\x1b" not in str(results(trial(0, 1.0, hyperparameters={"x": "\x1b[31m"})))


def test_pandas_is_asked_for_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        results(trial(0, 1.0)).to_pandas()


def test_what_decides_the_score_is_the_most_important() -> None:
    trials = [
        trial(n, float(n % 7), hyperparameters={"decides": float(n % 7), "noise": float(n * 37 % 11), "same": 1})
        for n in range(60)
    ]
    shares = importances(results(*trials))
    assert results(*trials).importance() == shares
    assert list(shares) == ["decides", "noise"] and shares["decides"] > 0.8
    assert importances(results(*trials[:7])) == {}


def test_a_trial_that_diverged_is_marked_at_the_end_of_the_axes() -> None:
    calm = [trial(n, n / 8, hyperparameters={"rate": n}, scores={1.0: n / 9, 2.0: n / 8}) for n in range(8)]
    figure = results(*calm, trial(8, -1e9, hyperparameters={"rate": 8}, scores={1.0: -1e6, 2.0: -1e9})).plot()
    history, _, steps = figure.axes[:3]
    for axes, places in ((history, [8]), (steps, [1.0, 2.0])):
        low, high = axes.get_ylim()
        assert -0.1 < low < 0 and 7 / 8 < high < 1
        (marks,) = (line for line in axes.lines if line.get_label() == "beyond the axis")
        assert list(marks.get_xdata()) == places and set(marks.get_ydata()) == {low}  # pyright: ignore[reportArgumentType]


def test_a_search_is_drawn_with_all_kinds_of_hyperparameters(tmp_path: Path) -> None:
    trials = [
        trial(
            n,
            float(n % 5),
            hyperparameters={"rate": 10.0 ** -(n % 4), "kind": "ab"[n % 2], **({"extra": n} if n % 3 else {})},
            scores={1.0: 0.5, float(1 + n): float(n % 5), 40.0: -math.inf},
        )
        for n in range(20)
    ]
    figure = results(*trials, trial(20, None)).plot(tmp_path / "new" / "search.png")
    assert (tmp_path / "new" / "search.png").read_bytes().startswith(b"\x89PNG")
    assert [axes.get_title() for axes in figure.axes[:4]] == [
        "history", "importance of hyperparameters", "steps that trials were given", "configurations",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="there is nothing to draw: none of 1 trials has reported 'score'"):
        results(trial(0, None)).plot()


def test_the_table_has_the_last_value_of_each_further_objective() -> None:
    found = results(trial(0, 0.5, values={"score": 0.4, "cost": 7.25}), trial(1, None), metrics=("score", "cost"))
    assert [line.split() for line in str(found).splitlines()] == [
        ["trial", "state", "step", "attempts", "best", "score", "last", "cost", "x"],
        ["0", "done", "3", "1", "0.5", "7.25", "0"],
        ["1", "done", "3", "1", "1"],
    ]
    assert ">last cost<" in found._repr_html_()


def test_the_best_checkpoint_of_a_trial_is_that_of_its_best_step(tmp_path: Path) -> None:
    scores = {1.0: -0.5, 2.0: -0.1, 3.0: math.nan, 4.0: -0.3}
    one, folder = trial(0, 0.1, scores=scores, folder=tmp_path), CheckpointFolder(tmp_path / "checkpoints")
    with pytest.raises(LookupError, match=r"trial 0 has no checkpoint in .*checkpoints"):
        one.restore()
    for step in (4, 2, 3):
        folder.write(step, {"weight": step})
    assert (one.restore().step, one.restore().state) == (2, {"weight": 2})
    assert one.restore(4).state == {"weight": 4}
    with pytest.raises(LookupError, match="no checkpoint of step 1; there are 2, 3, 4"):
        one.restore(1)


def test_a_number_that_is_absent_leaves_its_axis_to_numbers(tmp_path: Path) -> None:
    # The values that are there were texts on the axis, and not in their order.
    trials = [trial(n, float(n), hyperparameters={"x": n, **({"m": n / 10} if n % 2 else {})}) for n in range(6)]
    axes = results(*trials).plot().axes[3]
    assert {text.get_text() for text in axes.texts} >= {"0.1", "0.5"}
    (lines,) = axes.collections[:1]
    assert sorted({len(line) for line in lines.get_segments()}) == [2, 3]


def test_names_of_other_libraries_are_answered_with_ours() -> None:
    found: Any = results(trial(0, 0.5))
    with pytest.raises(AttributeError, match=r"no attribute 'best_params'; write results.best.hyperparameters"):
        _ = found.best_params
    with pytest.raises(AttributeError, match=r"no attribute 'params'; write trial.hyperparameters"):
        _ = found.best.params
    assert pickle.loads(pickle.dumps(found.best)) == copy.deepcopy(found.best) == found.best
    for kind, words in ((SearchResults, OF_RESULTS), (found.best, OF_RESULT)):
        assert not [name for some in words.values() for name in some if hasattr(kind, name)]
    made: Any = Search
    with pytest.raises(TypeError, match=r"Search has no argument num_samples; write trials="):
        made(print, num_samples=3, metric="loss")
    known = inspect.signature(Search.__init__).parameters
    assert not [name for some in ARGUMENTS.values() for name in some if name in known]
    scheduler: Any
    for scheduler, words in (
        (ASHA, OF_ASHA),
        (StoppingASHA, OF_ASHA),
        (AdaptiveASHA, OF_HYPERBAND),
        (Hyperband, OF_HYPERBAND),
        (MedianStopping, OF_MEDIAN_STOPPING),
    ):
        known = inspect.signature(scheduler).parameters
        for place, names in words.items():
            for name in set(names) - set(known):
                with pytest.raises(TypeError, match=rf"{scheduler.__name__} has no argument {name}; write {place}$"):
                    scheduler(**{name: 3})
            assert " of " in place or place.removesuffix("=") in known
    for wrong in ({"x": 1}, ["x"]):
        with pytest.raises(TypeError, match=r"start_with is a list of configurations, as start_with=\[{...}\], not "):
            made(lambda run, x: x, {"x": Uniform(0, 1)}, metric="loss", trials=2, start_with=wrong)


def test_a_notebook_shows_the_best_trials_first_and_counts_the_others() -> None:
    found = results(trial(0, 0.5), trial(1, 0.9), *(trial(number, 0.1) for number in range(2, 30)))
    shown = found._repr_html_()
    assert shown.index(">1<") < shown.index(">0<")
    assert "best score 0.9" in shown and "30 trials" in shown and "and 10 others" in shown
    assert "<table" in results()._repr_html_()


def test_a_notebook_shows_names_of_hyperparameters_as_text() -> None:
    shown = results(trial(0, 0.5, hyperparameters={"<script>": "<img src=x>\x1b[2J"}))._repr_html_()
    assert "<script>" not in shown and "<img" not in shown and "\x1b" not in shown
