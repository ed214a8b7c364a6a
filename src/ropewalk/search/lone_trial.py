"""One trial of a search by itself: what `ropewalk runs fork`, `continue` and `rerun` do with the id of a trial.

    ropewalk runs fork TRIAL --set rate=1e-3 ─▶ the command of the search, with ROPEWALK_TRIAL and ROPEWALK_FORK
                                                   └─ Search.run ─▶ run_alone: train(run, **hyperparameters)

The command of the search is run because it has the function, whatever it closes over, and what its script has prepared.
The trial runs in that process, as a script with `rw.track` does, without a scheduler: to the end of its function, or to
the last step that the scheduler gives to any trial. Nothing of the search changes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropewalk.errors import SearchInvalid
from ropewalk.search.objective_notes import ObjectiveNotes
from ropewalk.search.samplers.random import RandomSampler
from ropewalk.search.search_settings import SearchSettings
from ropewalk.search.space import nested
from ropewalk.search.suggesting import Suggesting
from ropewalk.search.trial_task import Request, TrialRun, TrialTask, take_value
from ropewalk.tracking.beginning import begin_run
from ropewalk.tracking.checkpoints import CheckpointPolicy
from ropewalk.tracking.detached_run import DetachedRun
from ropewalk.tracking.relaunch import Relaunch
from ropewalk.tracking.run_identity import RunIdentity
from ropewalk.tracking.store.opening import open_store
from ropewalk.tracking.store.rows import RunRow

logger = logging.getLogger(__name__)

TRIAL = "trial"
"""The fact of a run by which its function is found: the id of the trial from which it was forked."""


def run_alone(relaunch: Relaunch, settings: SearchSettings, store: str | Path | None, folder: Path | None) -> None:
    """Run the function of a search for one configuration, in this process.

    Args:
        relaunch: which trial, and what is meant by running it.
        settings: the settings of the search.
        store: path or URL of the store; None: the setting `store`.
        folder: folder of new runs; None: beside the store.

    Raises:
        SearchInvalid: the trial belongs to another search, or to a population.
        SettingsError: a setting is none of the trial's.
        Exception: whatever the function raises; its run has failed then.
    """
    with open_store(store) as opened:
        trial = opened.run(relaunch.trial)
        _check(trial, opened.run(trial.parent) if trial.parent else None, settings)
        source = opened.run(relaunch.continues or relaunch.forks or relaunch.trial)
        made: list[ObjectiveNotes] = []

        def make_run(
            identity: RunIdentity,
            config: Mapping[str, Any],
            detached: DetachedRun,
            checkpoints: CheckpointPolicy | None,
        ) -> TrialRun:
            made.append(ObjectiveNotes(detached, settings.metrics))
            task = _task(trial, identity, config, settings)
            return TrialRun(
                task, made[0], lambda: Request.of_words(detached.asked()), identity=identity, ended=detached.end
            )

        run = begin_run(
            "script",
            trial.project,
            source.config,
            name=None if relaunch.continues else f"{trial.name}-{'fork' if relaunch.forks else 'rerun'}",
            folder=folder,
            store=opened,
            seed=settings.seed + _number(trial),
            checkpoints=settings.checkpoints,
            relaunch=relaunch,
            more_facts={TRIAL: trial.id},
            make_run=make_run,
        )
        assert isinstance(run, TrialRun)
        logger.warning("%s (%s) runs by itself, without the scheduler of its search", run.name, run.id)
        values = {} if settings.suggests else nested(dict(run.config))
        with run:
            take_value(settings.train(run, **values), run, made[0])


def _check(trial: RunRow, search: RunRow | None, settings: SearchSettings) -> None:
    if search is None or (search.name, search.project) != (settings.name, settings.project):
        of = "no search" if search is None else f"the search {search.name!r} of project {search.project!r}"
        raise SearchInvalid(
            f"trial {trial.name} ({trial.id}) is of {of}, and this command runs the search {settings.name!r} of "
            f"project {settings.project!r} first: so its function is not found. Run the function with these "
            f"hyperparameters in a script of its own: {dict(trial.config)}"
        )
    if settings.population is not None:
        raise SearchInvalid(
            f"trial {trial.name} ({trial.id}) is a member of a population, whose states are those of other members at "
            "times, and does not run by itself; run the search again to go on with all of them"
        )


def _task(trial: RunRow, identity: RunIdentity, config: Mapping[str, Any], settings: SearchSettings) -> TrialTask:
    suggesting = None
    if settings.suggests:  # values that it does not know, because another setting has changed, are drawn
        sampler = RandomSampler()
        sampler.begin(settings.space, len(settings.metrics), settings.seed)
        suggesting = Suggesting(sampler, (), dict(config), {})
    return TrialTask(
        trial=_number(trial),
        run=identity.id,
        attempt=identity.attempt,
        token=1,
        hyperparameters=config,
        metrics=settings.metrics,
        budget=None,
        end_at=settings.scheduler.max_steps,
        name=identity.name,
        project=identity.project,
        folder=identity.folder,
        seed=settings.seed + _number(trial),
        checkpoints=settings.checkpoints,
        reported_step=math.inf,  # nobody waits for the report of an earlier attempt
        suggesting=suggesting,
    )


def _number(trial: RunRow) -> int:
    return int(trial.id.rpartition("-")[2])


__all__ = ["TRIAL", "run_alone"]
