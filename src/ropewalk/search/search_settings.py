"""`SearchSettings`: what a search is, wherever and whenever it runs: the settings that decide what happens in it.

Search(...) ─▶ SearchSettings ─▶ check()    what does not fit together is an error before anything starts
                              ├▶ config()   by which the store recognises the search
                              ├▶ book()     its state
                              └▶ task()     an attempt
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.errors import SearchInvalid
from ropewalk.near_names import check_choice
from ropewalk.search.arguments import check_parameters, described, fresh
from ropewalk.search.book import Line, Mode, SearchBook
from ropewalk.search.instructions import Begin
from ropewalk.search.member_run import TrainMember
from ropewalk.search.places import Train
from ropewalk.search.population_search import algorithm_of
from ropewalk.search.results import run_of_trial
from ropewalk.search.samplers.random import RandomSampler
from ropewalk.search.samplers.sampler import Sampler
from ropewalk.search.schedulers import NoScheduler, PopulationTraining
from ropewalk.search.schedulers.scheduler import Scheduler
from ropewalk.search.search_run import SearchLimits
from ropewalk.search.space import SearchSpace, nested
from ropewalk.search.suggesting import Suggesting
from ropewalk.search.trial_task import TrialTask
from ropewalk.tracking.checkpoints import CheckpointPolicy


@dataclass(frozen=True)
class SearchSettings:
    """The settings of a search that decide what happens in it.

    Attributes:
        train: the function.
        space: the space; without parameters, the function asks for what it needs.
        metrics: names of the objectives.
        modes: for each of them, "max" or "min".
        sampler: chooses configurations; it has not begun.
        scheduler: gives trials their budgets; it has not begun.
        population: what trains the trials as members of a population, in place of the scheduler; None: nothing.
        name: name of the search.
        project: its project in the store.
        trials: number of trials; None: as many as the sampler or the scheduler has.
        max_concurrent: trials at a time.
        seed: source of all randomness.
        max_restarts: how often a trial may fail in the same way without getting further in between.
        first: configurations of the first trials.
        checkpoints: which checkpoints of a trial are written and kept.
    """

    train: Train
    space: SearchSpace
    metrics: tuple[str, ...]
    modes: tuple[Mode, ...]
    sampler: Sampler
    scheduler: Scheduler
    population: PopulationTraining | None
    name: str
    project: str
    trials: int | None
    max_concurrent: int
    seed: int
    max_restarts: int
    first: Sequence[Mapping[str, Any]]
    checkpoints: CheckpointPolicy

    @property
    def suggests(self) -> bool:
        """Whether the function asks for its hyperparameters by `suggest_*`."""
        return not self.space.parameters

    # --- checks -------------------------------------------------------------------------------------------------------

    def check(self, limits: SearchLimits, trials_in: str) -> None:
        """Check that the settings fit together, and with those of the execution.

        Raises:
            SearchInvalid: they do not; or the constraints of the space admit nothing.
        """
        check_choice("trials_in", trials_in, ("workers", "threads"), SearchInvalid)
        if trials_in == "threads" and any(policy.exclude_host for policy in limits.log_policies):
            raise SearchInvalid(
                'a log policy with exclude_host=True needs trials in workers: with trials_in="threads", all run '
                "in this process"
            )
        if len(self.metrics) > 1 and not isinstance(self.scheduler, NoScheduler):
            raise SearchInvalid(
                f"a scheduler compares trials by one metric, and there are {len(self.metrics)}: "
                f'{", ".join(self.metrics)}; use scheduler="none", or one metric'
            )
        if (
            self.trials is None
            and self.population is None
            and isinstance(self.scheduler, NoScheduler)
            and (self.space.size is None or self.suggests)
        ):
            raise SearchInvalid(
                "without trials= this search would never end: its space has no end; say how many trials"
            )
        check_parameters(self.train, self.space)
        self.space.check(self.seed)
        if self.population is not None:
            self._check_population(self.population, limits, trials_in)
        self.begun_sampler()

    def _check_population(self, settings: PopulationTraining, limits: SearchLimits, trials_in: str) -> None:
        strange = {
            "several metrics": len(self.metrics) > 1,
            "sampler=, because its members are drawn at random": not isinstance(self.sampler, RandomSampler),
            'trials_in="threads"': trials_in == "threads",
            "silent_s=": limits.silent_s is not None,
            "log_policies=": bool(limits.log_policies),
            f"trials={self.trials}, because population={settings.population} is their number": self.trials
            not in (None, settings.population),
        }
        if found := [name for name, is_so in strange.items() if is_so]:
            raise SearchInvalid(f"a search by PopulationTraining does not take {found[0]}")
        algorithm_of(settings, self.space, self.first, self.seed)

    # --- parts --------------------------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """Return the settings by which a search is recognised."""
        return {
            "function": f"{getattr(self.train, '__module__', '')}.{getattr(self.train, '__qualname__', '')}",
            "metric": list(self.metrics),
            "mode": list(self.modes),
            "space": self.space.described(),
            "sampler": described(self.sampler),
            "scheduler": described(self.population or self.scheduler),
            "seed": self.seed,
            "trials": self.trials,
            "max_restarts": self.max_restarts,
            "max_concurrent": self.max_concurrent,
        }

    def book(self, log: Callable[[Line], object]) -> SearchBook:
        """Return the book of a search that has just begun.

        Args:
            log: called with each line.
        """
        return SearchBook(
            fresh(self.scheduler),
            self.begun_sampler(),
            metrics=self.metrics,
            modes=self.modes,
            max_trials=self.trials,
            max_restarts=self.max_restarts,
            first=self.first,
            log=log,
        )

    def begun_sampler(self) -> Sampler:
        """Return a sampler that has begun."""
        sampler = fresh(self.sampler)
        sampler.begin(self.space, len(self.metrics), self.seed)
        return sampler

    def task(self, begin: Begin, book: SearchBook, search: str, folder: Path, token: int) -> TrialTask:
        """Return the task of an attempt.

        Args:
            begin: the decision.
            book: the book that has made it.
            search: id of the search's run.
            folder: folder of all its runs.
            token: a number that no other attempt has.
        """
        run, facts = run_of_trial(search, begin.trial), book.trials[begin.trial]
        values = facts.hyperparameters
        suggesting = None
        if self.suggests:
            suggesting = Suggesting(book.sampler, book.observed, dict(values), dict(facts.suggested))
        return TrialTask(
            trial=begin.trial,
            run=run,
            attempt=begin.attempt,
            token=token,
            hyperparameters=nested({name: value for name, value in values.items() if name not in facts.suggested}),
            metrics=self.metrics,
            budget=begin.budget,
            end_at=self.scheduler.max_steps,
            name=f"{self.name}-{begin.trial}",
            project=self.project,
            folder=folder / run,
            seed=self.seed + begin.trial,
            checkpoints=self.checkpoints,
            reported_step=facts.step,
            suggesting=suggesting,
            excluded_hosts=tuple(facts.excluded_hosts),
        )

    def member(self, population: PopulationTraining, search: str, folder: Path) -> TrainMember:
        """Return what trains the members of a population.

        Args:
            population: how they are trained.
            search: id of the search's run.
            folder: folder of all its runs.
        """
        return TrainMember(
            self.train,
            search,
            self.metrics[0],
            1 if self.modes[0] == "max" else -1,
            self.name,
            self.project,
            folder,
            population.steps,
            self.checkpoints,
        )


__all__ = ["SearchSettings"]
