"""`SearchResults`: the table of a search's trials, and the best of them."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from ropewalk.control.view import View
from ropewalk.errors import SearchFailed
from ropewalk.escaping import escaped
from ropewalk.html_table import Cell, StateCell, html_box, html_headline, html_table
from ropewalk.misplaced_options import tells_names
from ropewalk.population.algorithms.pbt_history import PBTSchedule
from ropewalk.quantities import counted
from ropewalk.search.book import Mode, SearchBook
from ropewalk.search.importance import importances
from ropewalk.search.optuna_names import OF_RESULTS
from ropewalk.search.trial_facts import TrialFacts
from ropewalk.search.trial_result import TrialResult
from ropewalk.search.view import Objective, ended_view
from ropewalk.text_table import text_table

_SHOWN_TRIALS = 20


@tells_names(OF_RESULTS)
class SearchResults(Sequence[TrialResult]):
    """All trials of a search, by number.

    Args:
        trials: the trials.
        metrics: names of the objectives.
        modes: for each of them, "max" or "min".
        name: name of the search.
        run: id of the search's run.
        schedules: for a population, the history of each trial's state.
    """

    def __init__(
        self,
        trials: Sequence[TrialResult],
        metrics: Sequence[str],
        modes: Sequence[Mode],
        name: str,
        run: str,
        schedules: Sequence[PBTSchedule] = (),
    ) -> None:
        self._trials = list(trials)
        self.metrics: tuple[str, ...] = tuple(metrics)
        self.modes: tuple[Mode, ...] = tuple(modes)
        self.name: str = name
        self.run: str = run
        self.schedules: tuple[PBTSchedule, ...] = tuple(schedules)
        """For a population, the hyperparameters with which each trial's state was trained, interval by interval."""

    @classmethod
    def of(cls, book: SearchBook, name: str, run: str, folder: Path) -> SearchResults:
        """Return the results as a book has them now."""
        trials = [_result(facts, book.metrics, run, folder) for facts in book.trials]
        return cls(trials, book.metrics, book.modes, name, run)

    @overload
    def __getitem__(self, index: int) -> TrialResult: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TrialResult]: ...
    def __getitem__(self, index: int | slice) -> TrialResult | Sequence[TrialResult]:
        return self._trials[index]

    def __len__(self) -> int:
        return len(self._trials)

    def __iter__(self) -> Iterator[TrialResult]:
        return iter(self._trials)

    def __repr__(self) -> str:
        return f"<SearchResults {self.name!r} with {len(self)} trials>"

    def _repr_html_(self) -> str:
        ranked = self.ranked()
        states = Counter(trial.state for trial in self)
        facts = [("", counted(len(self), "trial")), *((state, str(number)) for state, number in states.items())]
        first = next(iter(ranked), None)
        best = [] if first is None or first.best is None else [(f"best {self.metrics[0]}", f"{first.best:.5g}")]
        head, *rows = self._rows(ranked[:_SHOWN_TRIALS])
        cells: list[list[Cell]] = [[row[0], StateCell(row[1]), *row[2:]] for row in rows]
        headline = html_headline(self.name, "", [*facts, *best])
        more = len(ranked) - _SHOWN_TRIALS
        rest = [f"<div>and {counted(more, 'other')}</div>"] if more > 0 else []
        return html_box(headline, html_table(head, cells, right=self._right()), *rest)

    def __str__(self) -> str:
        ranked = self.ranked()
        lines = list(text_table(self._rows(ranked[:_SHOWN_TRIALS]), right=self._right()))
        if len(ranked) > _SHOWN_TRIALS:
            lines.append(f"and {counted(len(ranked) - _SHOWN_TRIALS, 'other')}")
        return "\n".join(lines)

    @property
    def best(self) -> TrialResult:
        """The trial with the best value of the first metric at any step; the earliest of equal ones.

        Raises:
            SearchFailed: no trial has reported a value.
        """
        best = next(iter(self.ranked()), None)
        if best is None or best.best is None:
            raise SearchFailed(
                f"none of the {len(self)} trials of search {self.name!r} has reported {self.metrics[0]!r}"
            )
        return best

    @property
    def pareto_front(self) -> list[TrialResult]:
        """The trials that no other one surpasses in one objective without falling behind in another."""
        points = [(trial, self._score(trial)) for trial in self if len(trial.values) == len(self.metrics)]
        return [trial for trial, own in points if not any(_dominates(other, own) for _, other in points)]

    def ranked(self) -> list[TrialResult]:
        """Return the trials from the best to the worst; NaN is the worst, and those without a report come last."""
        sign = 1 if self.modes[0] == "max" else -1

        def key(trial: TrialResult) -> tuple[bool, bool, float, int]:
            best = math.nan if trial.best is None else trial.best
            is_nan = math.isnan(best)
            return trial.best is None, is_nan, 0.0 if is_nan else -sign * best, trial.number

        return sorted(self, key=key)

    def to_records(self) -> list[dict[str, Any]]:
        """Return a flat dictionary for each trial: its facts, `config.NAME` and the metrics' names.

        A metric with the name of one of these facts, such as "step", is called `metric.NAME`.
        """
        return [_record(trial) for trial in self]

    def to_pandas(self) -> Any:
        """Return `to_records` as a pandas DataFrame.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            pandas: Any = importlib.import_module("pandas")  # an optional package of the user
        except ImportError as error:
            raise ImportError("to_pandas needs pandas: pip install pandas; to_records works without it") from error
        return pandas.DataFrame.from_records(self.to_records())

    def view(self, panels: dict[str, int] | None = None) -> View:
        """Return what the page and reports show about the search, now that it has ended.

        Args:
            panels: names of the panels whose data is wanted, with cursors; see `ropewalk.control.view.Observable`.
                None: all of them.
        """
        return ended_view(self.name, self.run, self._trials, Objective(self.metrics[0], self.modes[0]), panels)

    def importance(self) -> dict[str, float]:
        """Return which hyperparameters matter: the share of each in what distinguishes the best trials from all.

        By PED-ANOVA (Watanabe, Bansal, Hutter 2023, https://arxiv.org/abs/2304.10255), for the first metric.

        Returns:
            Shares from 0 to 1 by name, which add up to 1, the largest first; empty if fewer than 8 trials have reported
            a finite value, or no hyperparameter varies.
        """
        return importances(self)

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the history, the configurations, the importance of hyperparameters and the steps of all trials.

        Args:
            path: file to save the picture to, as .png, .pdf or .svg; None only returns it.

        Returns:
            The figure of matplotlib, which belongs to no window.
        """
        from ropewalk.search.pictures import draw_search  # matplotlib takes half a second to import

        return draw_search(self, path)

    def _score(self, trial: TrialResult) -> tuple[float, ...]:
        """Return the values as numbers to maximise; NaN, beside which nothing is larger or smaller, as the worst."""
        values = (trial.values[name] for name in self.metrics)
        signed = (value if mode == "max" else -value for value, mode in zip(values, self.modes, strict=True))
        return tuple(-math.inf if math.isnan(value) else value for value in signed)

    def _right(self) -> set[int]:
        """Return the columns of `_rows` that are numbers."""
        return {0, 2, *range(3, 4 + len(self.metrics))}

    def _rows(self, trials: Sequence[TrialResult]) -> list[tuple[str, ...]]:
        names = list(dict.fromkeys(name for trial in trials for name in trial.hyperparameters))
        others = self.metrics[1:]
        heads = [f"best {self.metrics[0]}", *(f"last {name}" for name in others)]
        rows: list[tuple[str, ...]] = [("trial", "state", "step", "attempts", *heads, *names)]
        for trial in trials:
            values = [shown(trial.hyperparameters.get(name, "")) for name in names]
            best = "" if trial.best is None else f"{trial.best:.5g}"
            last = [f"{trial.values[name]:.5g}" if name in trial.values else "" for name in others]
            rows.append((str(trial.number), trial.state, f"{trial.step:g}", str(trial.attempts), best, *last, *values))
        return rows


def _record(trial: TrialResult) -> dict[str, Any]:
    facts = {
        "trial": trial.number,
        "run": trial.run,
        "state": trial.state,
        "step": trial.step,
        "attempts": trial.attempts,
        "best": trial.best,
    }
    rest = {
        **{f"config.{name}": value for name, value in trial.hyperparameters.items()},
        "why": trial.why,
        "excluded_hosts": list(trial.excluded_hosts),
    }
    taken = facts.keys() | rest.keys()
    values = {f"metric.{name}" if name in taken else name: value for name, value in trial.values.items()}
    return {**facts, **values, **rest}


def shown(value: object) -> str:
    """Return a hyperparameter as it is shown in tables."""
    return f"{value:.4g}" if isinstance(value, float) else escaped(str(value))


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return one != other and all(mine >= theirs for mine, theirs in zip(one, other, strict=True))


def _result(facts: TrialFacts, metrics: Sequence[str], run: str, folder: Path) -> TrialResult:
    own = run_of_trial(run, facts.number)
    return TrialResult(
        facts.number,
        own,
        facts.state.value,
        dict(facts.hyperparameters),
        facts.step,
        {} if facts.values is None else dict(zip(metrics, facts.values, strict=True)),
        facts.best,
        facts.attempts,
        facts.bracket,
        dict(facts.history),
        facts.why,
        folder / own,
        tuple(facts.excluded_hosts),
    )


def run_of_trial(search: str, trial: int) -> str:
    """Return the id of a trial's run."""
    return f"{search}-{trial}"
