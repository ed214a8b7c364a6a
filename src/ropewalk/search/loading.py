"""Results of a search that another process has run, or still runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ropewalk.errors import SearchInvalid
from ropewalk.search.book import SearchBook
from ropewalk.search.results import SearchResults, run_of_trial
from ropewalk.search.samplers.sampler import Observed, Sampler
from ropewalk.search.schedulers.no_scheduler import NoScheduler
from ropewalk.search.schedulers.population_training import PopulationTraining
from ropewalk.search.space import SearchSpace
from ropewalk.search.store_keeper import lines_of
from ropewalk.search.trial_facts import TrialState
from ropewalk.search.trial_result import TrialResult
from ropewalk.tracking.records import DONE
from ropewalk.tracking.store.opening import open_store
from ropewalk.tracking.store.rows import RunRow
from ropewalk.tracking.store.store import RunStore


def load_results(search: str, store: str | Path | None = None) -> SearchResults:
    """Return the trials of a search from a store, as far as they are stored.

    Args:
        search: id of the search's run, the beginning of it, or its name.
        store: path or URL of the store; None: the setting `store`.

    Raises:
        RunNotFound: there is no such run.
        SearchInvalid: that run is not a search.
        StoreError: the store cannot be opened.
    """
    with open_store(store, create=False) as opened:
        return read_results(opened, search)


def read_results(store: RunStore, search: str) -> SearchResults:
    """Return the trials of a search from a store that is open; as `load_results`."""
    row = store.run(search)
    if row.kind != "search":
        raise SearchInvalid(f"run {row.name!r} ({row.id}) is a {row.kind}, not a search")
    if PopulationTraining.__name__ in str(row.config["scheduler"]):
        return _members(store, row)
    lines = lines_of(store, row.id)
    book = SearchBook(
        NoScheduler(), _NoSampler(), metrics=row.config["metric"], modes=row.config["mode"], max_trials=None
    )
    book.replay(lines, checks=False)
    # Whether a trial that was stopped at its scheduler's last step is done, only that scheduler knows.
    done = {run.id for run in store.runs(parent=row.id, states=[DONE], archived=None)}
    for trial in book.trials:
        if trial.state is TrialState.STOPPED and run_of_trial(row.id, trial.number) in done:
            trial.state = TrialState.DONE
    return SearchResults.of(book, row.name, row.id, Path(row.folder).parent)


def _members(store: RunStore, row: RunRow) -> SearchResults:
    """Return the members of a population, with all that each has logged: also before it copied another."""
    (metric,), (mode,) = row.config["metric"], row.config["mode"]
    group, _, name = metric.rpartition("/")
    sign, trials = 1 if mode == "max" else -1, list[TrialResult]()
    for member in store.children(row.id):
        points = store.points(member.id, name, group)
        logged = dict(zip(points.steps.tolist(), points.values.tolist(), strict=True))
        scores = {step: sign * value for step, value in sorted(logged.items())}
        result = TrialResult(
            number=int(member.id.rpartition("-")[2]),
            run=member.id,
            state=member.state,
            hyperparameters=member.config,
            step=points.steps[-1].item() if logged else 0.0,
            values={metric: points.values[-1].item()} if logged else {},
            best=points.values[-1].item() if logged else None,
            attempts=len(store.attempts(member.id)),
            bracket=0,
            scores=scores,
            why=member.why,
            folder=Path(member.folder),
        )
        trials.append(result)
    return SearchResults(sorted(trials, key=lambda each: each.number), [metric], [mode], row.name, row.id)


class _NoSampler(Sampler):
    """Takes the place of a sampler where nothing is sampled."""

    def begin(self, space: SearchSpace, objectives: int, seed: int) -> None:
        """Nothing is sampled."""

    def ask(self, number: int, trials: Sequence[Observed]) -> dict[str, Any] | None:
        return None
