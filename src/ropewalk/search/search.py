"""`Search`: many trials of one training function, from its settings to the table of results.

def train(run, rate, width):
    model, saved = make(width), run.restore()
    if saved:
        model.load_state_dict(saved.state)
    for epoch in run.steps(81):
        run.log(accuracy=train_epoch(model, rate))
        run.checkpoint(lambda: model.state_dict())

search = Search(train, {"rate": LogUniform(1e-4, 1), "width": Integers(8, 256, log=True)},
                metric="accuracy", scheduler=ASHA(R=81, eta=3), trials=64)
print(search.run())
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ropewalk import settings
from ropewalk.engines.resources import Resources, usable_cpus
from ropewalk.errors import SearchFailed, SearchInvalid
from ropewalk.processes.session import Session
from ropewalk.search.book import Begin, Line, Mode, SearchBook
from ropewalk.search.places import Places, PoolPlaces, ThreadPlaces, Train
from ropewalk.search.progress import SearchProgress
from ropewalk.search.results import SearchResults, TrialResult, run_of_trial
from ropewalk.search.samplers import SAMPLERS
from ropewalk.search.samplers.sampler import Sampler
from ropewalk.search.schedulers import NoScheduler, make_scheduler
from ropewalk.search.schedulers.scheduler import Scheduler
from ropewalk.search.search_run import SearchLimits, SearchRun
from ropewalk.search.space import SearchSpace, nested
from ropewalk.search.store_keeper import StoreKeeper, check_same, lines_of, unfinished_search
from ropewalk.search.trial_task import Suggesting, TrialTask
from ropewalk.tracking import records
from ropewalk.tracking.checkpoints import CheckpointPolicy
from ropewalk.tracking.facts import collect
from ropewalk.tracking.log_policies import LogPolicy
from ropewalk.tracking.store.opening import open_store
from ropewalk.tracking.store.store import RunStore
from ropewalk.tracking.writer import StoreWriter

_HEARTBEAT_S = 20.0
_MAY_CHANGE = ("trials", "max_restarts", "max_concurrent")
"""Settings that may differ when a search goes on."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Search:
    """A search over hyperparameters: trials of one function, in workers of a pool, kept in a store of runs.

    A search that was interrupted, by Ctrl-C or by the death of its launcher, goes on when the same command is run
    again: nothing that was done is done again, and trials continue from their checkpoints.

    Args:
        train: `train(run, **hyperparameters)`. It logs the metric with `run.log`, and returns None, or the metric, or a
            mapping of metrics, or a `Program` that is then run. Trials that may pause, or die, should call
            `run.checkpoint` in each step of `run.steps`, and begin with `run.restore()`.
        space: distributions by name, as for `SearchSpace`; constants and nested mappings are allowed. None: the
            function asks for what it needs with `run.suggest_float` and the like, as with Optuna.
        metric: name of the metric that decides, with its group if it has one: "accuracy", "validation/loss". Several:
            the objectives, for samplers that take them.
        mode: "max" or "min"; for several metrics, one for each.
        sampler: chooses configurations: "random", "grid", "sobol", "tpe", ..., a `Sampler`, or one of Optuna's.
        scheduler: gives trials their budget: "none", "asha", ..., or a `Scheduler`.
        trials: number of trials; None: as many as the sampler or the scheduler has.
        max_concurrent: trials at a time; None: as many as this machine has CPUs for, with `resources`.
        resources: what each trial needs.
        engine: where the workers run; None: the setting `engine`.
        session: the session to use; None: the shared one of the engine.
        name: name of the search; None: that of the function.
        project: project in the store; None: that of the name.
        store: path or URL of the store; None: the setting `store`.
        folder: folder of the runs' checkpoints and artifacts, which every host must see at the same path; None: beside
            the store.
        seed: source of all randomness.
        max_restarts: how often a trial may fail in the same way without getting further in between.
        start_with: configurations of the first trials, as mappings of the space's form.
        time_limit_s: seconds after which trials pause, and the search ends.
        silent_s: seconds without a report after which a trial is killed; None: no limit.
        log_policies: what follows from words in the causes of failures.
        checkpoints: which checkpoints of a trial are written and kept; None: one for each step, of which the newest
            and the best are kept.
        resume: go on with an unfinished search of the same name and settings; False always begins anew.
        trials_in: "workers" of a pool; or "threads" of this process, for trials whose `Trainer` or `Program` needs
            several hosts.
        preload: modules that the workers share from the start, such as "torch".
        progress: show a table in a terminal, or a line for each trial elsewhere; False shows nothing.

    Raises:
        SearchInvalid: settings that do not fit together; a space whose constraints admit nothing.
    """

    def __init__(
        self,
        train: Train,
        space: SearchSpace | Mapping[str, Any] | None = None,
        *,
        metric: str | Sequence[str],
        mode: Mode | Sequence[Mode] = "max",
        sampler: str | Sampler | Any = "random",
        scheduler: str | Scheduler = "none",
        trials: int | None = None,
        max_concurrent: int | None = None,
        resources: Resources | None = None,
        engine: str | None = None,
        session: Session | None = None,
        name: str | None = None,
        project: str | None = None,
        store: str | Path | None = None,
        folder: str | Path | None = None,
        seed: int = 0,
        max_restarts: int = 5,
        start_with: Sequence[Mapping[str, Any]] = (),
        time_limit_s: float | None = None,
        silent_s: float | None = None,
        log_policies: Sequence[LogPolicy] = (),
        checkpoints: CheckpointPolicy | None = None,
        resume: bool = True,
        trials_in: Literal["workers", "threads"] = "workers",
        preload: Sequence[str] = (),
        progress: bool | None = None,
    ) -> None:
        self.metrics, self.modes = _objectives(metric, mode)
        self.space = space if isinstance(space, SearchSpace) else SearchSpace(space or {})
        self._suggests = not self.space.parameters
        self._train = train
        self._scheduler = make_scheduler(scheduler)
        self._sampler = _sampler(sampler)
        self.name = name or getattr(train, "__name__", type(train).__name__)
        self.project = project or self.name
        self._trials, self._seed, self._max_restarts = trials, seed, max_restarts
        self._resources, self._engine, self._session = resources, engine, session
        self._store, self._folder = store, None if folder is None else Path(folder).absolute()
        self._limits = SearchLimits(time_limit_s, silent_s, tuple(log_policies))
        self._checkpoints = checkpoints or CheckpointPolicy(best=self.metrics[0], mode=self.modes[0])
        self._resume, self._trials_in, self._preload, self._progress = resume, trials_in, tuple(preload), progress
        self._max_concurrent = max_concurrent or _places_here(resources)
        self._first = [self.space.validate(values) for values in start_with]
        self._tokens = itertools.count(1)
        self._results: SearchResults | None = None
        self._check(trials_in)
        self.space.check(seed)
        self._sampler.begin(self.space, len(self.metrics), seed)

    def __repr__(self) -> str:
        return f"<Search {self.name!r} of {', '.join(self.metrics)}>"

    # --- running it ---------------------------------------------------------------------------------------------------

    def run(self) -> SearchResults:
        """Run the search, or go on with it, and return when it is complete, or its time is over.

        Returns:
            The table of its trials.

        Raises:
            SearchFailed: every trial fails in the same way before it has reported anything, or none logs the metric.
            SearchInvalid: an unfinished search of this name has other settings.
            StoreError: the store cannot be opened.
            KeyboardInterrupt: after Ctrl-C, when all trials have paused; the same command goes on.
        """
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(open_store(self._store))
            writer = StoreWriter(store, store.where)
            stack.callback(writer.close)
            book, keeper = self._open(store, writer)
            progress = stack.enter_context(SearchProgress(book, self.name, self._trials, self._progress))
            progress.note(f"{len(book.trials)} trials so far; run {keeper.run} in {store.where}")
            stack.callback(writer.every(_HEARTBEAT_S, keeper.heartbeat))
            places = self._places(writer, keeper.run)
            stack.callback(places.close)
            running = SearchRun(
                book, places, keeper, self._limits, lambda begin: self._task(begin, book, keeper), progress.update
            )
            self._carry_through(running, keeper, progress)
        if running.why_stopping == "Ctrl-C":
            raise KeyboardInterrupt
        return self.results()

    def _carry_through(self, running: SearchRun, keeper: StoreKeeper, progress: SearchProgress) -> None:
        state, why = records.PAUSED, ""
        try:
            running.run()
            state, why = (records.PAUSED, running.why_stopping) if running.why_stopping else (records.DONE, "")
        except SearchFailed as error:
            state, why = records.FAILED, str(error)
            raise
        except KeyboardInterrupt:
            why = "Ctrl-C, twice"
            raise
        except BaseException as error:  # no fault of the search: it can go on when that is repaired
            why = f"{type(error).__name__}: {error}"
            raise
        finally:
            keeper.end(state, why)
            self._results = SearchResults.of(running.book, self.name, keeper.run, keeper.folder)
            progress.update(now=True)
            progress.note(running_words(running, why))

    # --- its results --------------------------------------------------------------------------------------------------

    def results(self) -> SearchResults:
        """Return the table of all trials.

        Raises:
            SearchFailed: the search has not run in this process.
        """
        if self._results is None:
            raise SearchFailed(f"search {self.name!r} has not run yet: call run() first")
        return self._results

    @property
    def best(self) -> TrialResult:
        """The best trial; see `SearchResults.best`."""
        return self.results().best

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the search; see `SearchResults.plot`."""
        return self.results().plot(path)

    # --- smaller steps ------------------------------------------------------------------------------------------------

    def _check(self, trials_in: str) -> None:
        if not callable(self._train):
            raise SearchInvalid(f"a search needs a function train(run, **hyperparameters), not {self._train!r}")
        if self._trials is not None and self._trials < 1:
            raise SearchInvalid(f"trials is the number of trials, 1 or more, or None, not {self._trials}")
        if self._max_concurrent < 1:
            raise SearchInvalid(f"max_concurrent is 1 or more, not {self._max_concurrent}")
        if trials_in not in ("workers", "threads"):
            raise SearchInvalid(f'trials_in is "workers" or "threads", not {trials_in!r}')
        if len(self.metrics) > 1 and not isinstance(self._scheduler, NoScheduler):
            raise SearchInvalid(
                f"a scheduler compares trials by one metric, and there are {len(self.metrics)}: "
                f'{", ".join(self.metrics)}; use scheduler="none", or one metric'
            )
        if (
            self._trials is None
            and isinstance(self._scheduler, NoScheduler)
            and (self.space.size is None or self._suggests)
        ):
            raise SearchInvalid(
                "without trials= this search would never end: its space has no end; say how many trials"
            )
        _check_parameters(self._train, self.space)

    def _open(self, store: RunStore, writer: StoreWriter) -> tuple[SearchBook, StoreKeeper]:
        """Find the search in the store, or create it there."""
        config = self._config()
        earlier = unfinished_search(store, self.project, self.name) if self._resume else None
        changed = [] if earlier is None else check_same(earlier, config, _MAY_CHANGE)
        run = earlier.id if earlier else secrets.token_hex(5)
        folder = self._folder or default_runs_folder(store.where)
        keeper = StoreKeeper(store, writer, run, self.project, self.name, folder)
        book = self._book(keeper.line)
        if earlier is None:
            keeper.create(config, collect(self._seed))
        else:
            self._replay(book, lines_of(store, run), earlier.name, run)
        keeper.begin()
        if earlier is not None:
            keeper.event("continued", "; ".join(["the search goes on", *changed]))
            book.suspended()
        return book, keeper

    def _replay(self, book: SearchBook, lines: Sequence[Line], name: str, run: str) -> None:
        try:
            book.replay(lines)
        except ValueError as error:
            raise SearchInvalid(
                f"search {name!r} ({run}) cannot go on: {error}. Its scheduler has other settings now; restore them, "
                "or begin anew with resume=False"
            ) from error

    def _book(self, log: Callable[[Line], object]) -> SearchBook:
        return SearchBook(
            self._scheduler,
            self._sampler,
            metrics=self.metrics,
            modes=self.modes,
            max_trials=self._trials,
            max_restarts=self._max_restarts,
            first=self._first,
            log=log,
        )

    def _places(self, writer: StoreWriter, run: str) -> Places:
        if self._trials_in == "threads":
            return ThreadPlaces(self._train, self._max_concurrent, writer)
        return PoolPlaces(
            self._train,
            self._max_concurrent,
            writer,
            name=f"search-{run}",
            engine=self._engine,
            session=self._session,
            resources=self._resources,
            preload=self._preload,
        )

    def _task(self, begin: Begin, book: SearchBook, keeper: StoreKeeper) -> TrialTask:
        run, facts = run_of_trial(keeper.run, begin.trial), book.trials[begin.trial]
        values = facts.hyperparameters
        suggesting = None
        if self._suggests:
            suggesting = Suggesting(self._sampler, book.observed, dict(values), dict(facts.suggested))
        return TrialTask(
            trial=begin.trial,
            run=run,
            attempt=begin.attempt,
            token=next(self._tokens),
            hyperparameters=nested({name: value for name, value in values.items() if name not in facts.suggested}),
            metrics=self.metrics,
            budget=begin.budget,
            end_at=self._scheduler.max_steps,
            name=f"{self.name}-{begin.trial}",
            project=self.project,
            folder=keeper.folder / run,
            seed=self._seed + begin.trial,
            checkpoints=self._checkpoints,
            reported_step=facts.step,
            suggesting=suggesting,
        )

    def _config(self) -> dict[str, Any]:
        """Return the settings by which a search is recognised."""
        return {
            "function": f"{getattr(self._train, '__module__', '')}.{getattr(self._train, '__qualname__', '')}",
            "metric": list(self.metrics),
            "mode": list(self.modes),
            "space": self.space.described(),
            "sampler": described(self._sampler),
            "scheduler": described(self._scheduler),
            "seed": self._seed,
            "trials": self._trials,
            "max_restarts": self._max_restarts,
            "max_concurrent": self._max_concurrent,
        }


def _sampler(wanted: str | Sampler | Any) -> Sampler:
    """Return the sampler of this name, or the given one; one of Optuna's is wrapped."""
    if isinstance(wanted, str):
        return SAMPLERS.make(wanted, {})
    if isinstance(wanted, Sampler):
        return wanted
    from ropewalk.search.samplers.by_optuna import OptunaSampler  # Optuna takes half a second to import

    return OptunaSampler(wanted)


def described(part: object) -> str:
    """Return a scheduler or a sampler in words, the same in each process."""
    return _ADDRESS.sub("", repr(part))


def default_runs_folder(store: str) -> Path:
    """Return the folder in which runs of a store have theirs: beside its file, or in this user's data folder."""
    return settings.data_folder(os.environ) / "runs" if "://" in store else Path(store).parent / "runs"


def running_words(running: SearchRun, why: str) -> str:
    """Return what is said when a search ends."""
    book = running.book
    num_left = sum(not trial.state.is_final for trial in book.trials)
    if running.why_stopping:
        return f"paused ({why}); {num_left} trials wait: run the same command to go on"
    return f"ended: {why}" if why else f"complete: {len(book.trials)} trials"


def _objectives(metric: str | Sequence[str], mode: Mode | Sequence[Mode]) -> tuple[tuple[str, ...], tuple[Mode, ...]]:
    metrics = (metric,) if isinstance(metric, str) else tuple(metric)
    modes = (mode,) * len(metrics) if isinstance(mode, str) else tuple(mode)
    if not metrics or len(set(metrics)) < len(metrics):
        raise SearchInvalid(f"metric is a name, or several different ones, not {metric!r}")
    if len(modes) != len(metrics) or any(each not in ("max", "min") for each in modes):
        raise SearchInvalid(f'mode is "max" or "min" for each of {", ".join(metrics)}, not {mode!r}')
    return metrics, modes


def _places_here(resources: Resources | None) -> int:
    return max(1, int(usable_cpus() // max(1.0, resources.cpus if resources and resources.cpus else 1.0)))


def _check_parameters(train: Train, space: SearchSpace) -> None:
    """Check that the function takes what the space has.

    Raises:
        SearchInvalid: it lacks a parameter, or requires one that the space lacks.
    """
    try:
        signature = inspect.signature(train)
    except (TypeError, ValueError):  # made in C
        return
    parameters = list(signature.parameters.values())[1:]
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return
    names = {name.partition(".")[0] for name in space.parameters}
    taken = {each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)}
    needed = {each.name for each in parameters if each.default is each.empty and each.name in taken}
    name = getattr(train, "__name__", "the function")
    if strange := sorted(names - taken):
        raise SearchInvalid(
            f"{name} has no parameter {strange[0]!r} for the hyperparameter of this name; it takes run, then "
            f"{', '.join(sorted(taken)) or 'nothing'}"
        )
    if missing := sorted(needed - names):
        raise SearchInvalid(
            f"{name} needs {missing[0]!r}, and the space has only {', '.join(sorted(names)) or 'nothing'}"
        )


__all__ = ["Search"]
