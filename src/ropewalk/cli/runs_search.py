"""What `ropewalk runs show` adds for a search: its best trials, and which hyperparameters matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.cli.runs_tables import Part, number
from ropewalk.escaping import escaped

if TYPE_CHECKING:  # searches need an extra, and `ropewalk --help` does not
    from ropewalk.search.results import SearchResults
    from ropewalk.tracking import RunRow, RunStore

_SETTINGS = {"metric", "mode", "scheduler"}
"""Settings that every search writes; another program may have written a run of this kind."""
_BEST = 5
"""The number of trials that are shown."""


def results_of(store: RunStore, run: RunRow) -> SearchResults | None:
    """Return the trials of a search, as far as they are stored; None for another run."""
    if run.kind != "search" or not run.config.keys() >= _SETTINGS:
        return None
    from ropewalk.search.loading import read_results  # takes most of a second to import

    return read_results(store, run.id)


def search_parts(results: SearchResults) -> list[Part]:
    """Return the parts of the report of a search that other runs do not have.

    Args:
        results: its trials.
    """
    parts: list[Part] = []
    best = [trial for trial in results.ranked() if trial.best is not None][:_BEST]
    if best:
        names = list(dict.fromkeys(name for trial in best for name in trial.hyperparameters))
        others = results.metrics[1:]
        metrics = (f"best {results.metrics[0]}", *(f"last {name}" for name in others))
        head = ("trial", *metrics, "step", "state", "id", *names)
        rows = [tuple(map(escaped, head))]
        for trial in best:
            values = [_shown(trial.hyperparameters.get(name, "")) for name in names]
            last = [number(trial.values.get(name)) for name in others]
            own = str(trial.number), number(trial.best), *last, f"{trial.step:g}", trial.state, trial.run
            rows.append((*own, *values))
        parts.append(("best trials", (rows, {*range(len(metrics) + 2)})))
    if shares := results.importance():
        rows = [("hyperparameter", "share"), *((escaped(name), f"{share:.0%}") for name, share in shares.items())]
        parts.append(("importance of hyperparameters (PED-ANOVA)", (rows, {1})))
    return parts


def _shown(value: object) -> str:
    return number(value) if isinstance(value, float) else escaped(str(value))


__all__ = ["results_of", "search_parts"]
