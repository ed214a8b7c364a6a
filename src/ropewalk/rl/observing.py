"""`Experiment.run(track=...)`: the run that keeps what an experiment reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.rl.logs.logger import Logger, LogRow, several
from ropewalk.tracking.observed_run import ObservedRun, Track, observed
from ropewalk.tracking.records import TABLE, VALIDATION

if TYPE_CHECKING:
    from ropewalk.rl.experiment import Experiment


def observe(track: Track, experiment: Experiment, actors: int) -> ObservedRun:
    """Begin the run of an experiment.

    Args:
        track: as for `Experiment.run`.
        experiment: the experiment.
        actors: the number of its actors.
    """
    if not track:
        return ObservedRun(None)
    config = {
        "agent": experiment.agent,
        "environment": repr(experiment.environment),
        "network": repr(experiment.network),
        "steps": experiment.steps,
        "actors": actors,
    }
    name = type(experiment.agent).__name__.lower()
    return observed(track, "experiment", name, config, seed=experiment.seed)


def with_rows(log: Logger, watched: ObservedRun) -> Logger:
    """Return a logger that writes the rows to the run of an experiment, too."""

    def write(label: str, row: LogRow) -> None:
        watched.row(row, float(row["steps"] or 0), VALIDATION if label == "evaluation" else TABLE)

    return log if watched.run is None else several(log, write)
