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
import itertools
import os
import reprlib
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ropewalk.control.announcing import announced
from ropewalk.control.view import Observable, View
from ropewalk.engines.resources import Resources, check_resources
from ropewalk.errors import RopewalkError, SearchFailed, SearchInvalid
from ropewalk.escaping import escaped
from ropewalk.html_table import html_box, html_headline, html_table
from ropewalk.misplaced_options import OF_RESOURCES, tells_places
from ropewalk.processes.session import Session
from ropewalk.processes.shared_sessions import leased
from ropewalk.progress_stream import ProgressStream
from ropewalk.quantities import counted
from ropewalk.search.arguments import check_kinds, objectives, places_here, sampler_of
from ropewalk.search.book import Mode, SearchBook
from ropewalk.search.claimed_search import ClaimedSearch, begun_book, claimed_search
from ropewalk.search.endings import state_after, words_at_the_end, words_at_the_end_of_population
from ropewalk.search.instructions import Begin
from ropewalk.search.lone_trial import run_alone
from ropewalk.search.optuna_names import ARGUMENTS
from ropewalk.search.places import Places, PoolPlaces, ThreadPlaces, Train
from ropewalk.search.population_search import MemberPlaces, PopulationSearch
from ropewalk.search.progress import SearchProgress
from ropewalk.search.results import SearchResults
from ropewalk.search.running import RunningSearch
from ropewalk.search.samplers.sampler import Sampler
from ropewalk.search.schedulers import NoScheduler, PopulationTraining, make_scheduler
from ropewalk.search.schedulers.scheduler import Scheduler
from ropewalk.search.search_run import SearchLimits, SearchRun
from ropewalk.search.search_settings import SearchSettings
from ropewalk.search.space import SearchSpace
from ropewalk.search.store_keeper import StoreKeeper
from ropewalk.search.trial_facts import TrialFacts, TrialState
from ropewalk.search.trial_pool import TrialWorkers
from ropewalk.search.trial_result import TrialResult
from ropewalk.search.trial_task import TrialTask
from ropewalk.search.view import Objective
from ropewalk.tracking import records
from ropewalk.tracking.checkpoints import CheckpointPolicy
from ropewalk.tracking.journal import RecordJournal
from ropewalk.tracking.log_policies import LogPolicy
from ropewalk.tracking.relaunch import take_relaunch
from ropewalk.tracking.store.opening import open_store
from ropewalk.tracking.store.store import RunStore
from ropewalk.tracking.writer import StoreWriter
from ropewalk.user_frames import user_frames_only

_HEARTBEAT_S = 20.0


class Search:
    """A search over hyperparameters: trials of one function, in workers of a pool, kept in a store of runs.

    A search that was interrupted, by Ctrl-C or by the death of its launcher, resumes when the same command is run
    again: no finished work is repeated, and trials continue from their checkpoints.

    Example:
        >>> from ropewalk.search import LogUniform, Search
        >>> def train(run, rate):
        ...     x = 5.0
        ...     for step in run.steps(9):
        ...         x -= rate * 2 * x
        ...         run.log(loss=x * x)
        >>> search = Search(train, {"rate": LogUniform(1e-3, 1)}, metric="loss", mode="min", trials=4, progress=False)
        >>> results = search.run()
        >>> len(results), results.best.best < 25
        (4, True)

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
        scheduler: gives trials their budget: "none", "asha", ..., or a `Scheduler`; or a `PopulationTraining`, whose
            members are the trials.
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
        max_restarts: how many times a trial may fail in the same way without progress in between.
        start_with: configurations of the first trials, as mappings of the space's form.
        time_limit_s: seconds after which trials pause, and the search ends.
        silent_s: seconds without a report after which a trial is killed; None: no limit.
        log_policies: what to do about words in the causes of failures.
        checkpoints: which checkpoints of a trial are written and kept; None: one for each step, of which the newest
            and the best are kept.
        resume: continue the search of the same name and settings if it is unfinished, or complete with fewer than
            `trials`; False always starts over.
        trials_in: "workers" of a pool; or "threads" of this process, for trials whose `Trainer` or `Program` needs
            several hosts.
        preload: modules that the workers share from the start, such as "torch".
        progress: show a table in a terminal, or a line for each trial elsewhere; False shows nothing.

    Raises:
        SearchInvalid: settings that do not fit together; a space whose constraints admit nothing.
        TypeError: an argument has the wrong type.
    """

    @user_frames_only
    @tells_places({**OF_RESOURCES, **ARGUMENTS})
    def __init__(
        self,
        train: Train,
        space: SearchSpace | Mapping[str, Any] | None = None,
        *,
        metric: str | Sequence[str],
        mode: Mode | Sequence[Mode] = "max",
        sampler: str | Sampler | Any = "random",
        scheduler: str | Scheduler | PopulationTraining = "none",
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
        check_resources(resources)
        check_kinds(
            train,
            space,
            trials=trials,
            max_concurrent=max_concurrent,
            seed=seed,
            max_restarts=max_restarts,
            time_limit_s=time_limit_s,
            silent_s=silent_s,
            name=name,
            project=project,
            engine=engine,
        )
        names, modes = objectives(metric, mode)
        made = make_scheduler(scheduler)
        own_space = space if isinstance(space, SearchSpace) else SearchSpace(space or {})
        own_name: str = name or getattr(train, "__name__", type(train).__name__)
        self._settings = SearchSettings(
            train=train,
            space=own_space,
            metrics=names,
            modes=modes,
            sampler=sampler_of(sampler),
            scheduler=made if isinstance(made, Scheduler) else NoScheduler(),
            population=made if isinstance(made, PopulationTraining) else None,
            name=own_name,
            project=project or own_name,
            trials=trials,
            max_concurrent=places_here(resources) if max_concurrent is None else max_concurrent,
            seed=seed,
            max_restarts=max_restarts,
            first=_first_configurations(own_space, start_with),
            checkpoints=checkpoints or CheckpointPolicy(best=names[0], mode=modes[0]),
        )
        self._resources, self._engine, self._session = resources, engine, session
        self._store, self._folder = store, None if folder is None else Path(folder).absolute()
        self._limits = SearchLimits(time_limit_s, silent_s, tuple(log_policies))
        self._resume, self._trials_in, self._preload, self._progress = resume, trials_in, tuple(preload), progress
        self._tokens = itertools.count(1)
        self._results: SearchResults | None = None
        self._settings.check(self._limits, trials_in)

    @property
    def name(self) -> str:
        """Its name."""
        return self._settings.name

    @property
    def project(self) -> str:
        """The project of its runs."""
        return self._settings.project

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the objectives."""
        return self._settings.metrics

    @property
    def modes(self) -> tuple[Mode, ...]:
        """For each objective, "max" or "min"."""
        return self._settings.modes

    @property
    def space(self) -> SearchSpace:
        """The space; without parameters if the function asks for what it needs."""
        return self._settings.space

    def __repr__(self) -> str:
        return f"<Search {self.name!r} of {', '.join(self.metrics)}>"

    def _repr_html_(self) -> str:
        if self._results is not None:
            return self._results._repr_html_()  # pyright: ignore[reportPrivateUsage]
        settings = [("metric", f"{name}, {mode}") for name, mode in zip(self.metrics, self.modes, strict=True)]
        settings += [(name, str(one.distribution)) for name, one in self.space.parameters.items()]
        return html_box(html_headline(self.name, "not run yet"), html_table(("setting", "value"), settings))

    # --- running it ---------------------------------------------------------------------------------------------------

    @user_frames_only
    def run(self) -> SearchResults:
        """Run or resume the search, and return when it is complete or its time is over.

        Returns:
            The table of its trials.

        Raises:
            SearchFailed: every trial fails in the same way before it has reported anything, or none logs the metric.
            SearchInvalid: an unfinished search of this name has other settings.
            StoreError: the store cannot be opened.
            SystemExit: `ropewalk runs fork`, `continue` or `rerun` has run this command for one trial, which is done.
            KeyboardInterrupt: after Ctrl-C, when all trials have paused; the same command resumes.
        """
        relaunch = take_relaunch(os.environ, of_search=True)
        if relaunch.trial:
            run_alone(relaunch, self._settings, self._store, self._folder)
            raise SystemExit(0)
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(open_store(self._store))
            writer = StoreWriter(store, store.where, journal=RecordJournal(store))
            stack.callback(writer.close)
            claimed = stack.enter_context(claimed_search(self._settings, store, writer, self._folder, self._resume))
            keeper = claimed.keeper
            if self._settings.population is not None:
                return self._run_population(self._settings.population, store, writer, claimed)
            book = begun_book(self._settings, store, claimed)
            running = self._running(keeper, self._settings.trials, lambda: book.trials, book.scheduler)
            keeper.told = running.line
            stack.enter_context(self._shown(running))
            progress = stack.enter_context(SearchProgress(book, self.name, self._settings.trials, self._progress))
            goes_on = f"goes on after {counted(len(book.trials), 'trial')}; " if book.trials else ""
            if claimed.note:
                progress.note(claimed.note)
            progress.note(f"{goes_on}run {keeper.run} in {store.where}")
            stack.callback(writer.every(_HEARTBEAT_S, keeper.heartbeat))
            why_stopping = self._carry_through(book, keeper, writer, progress, running)
        if why_stopping == "Ctrl-C":
            raise KeyboardInterrupt
        return self.results()

    def _carry_through(
        self,
        book: SearchBook,
        keeper: StoreKeeper,
        writer: StoreWriter,
        progress: SearchProgress,
        shown: RunningSearch,
    ) -> str:
        """Run the trials; returns why the search pauses, or an empty text."""

        def make_task(begin: Begin) -> TrialTask:
            return self._settings.task(begin, book, keeper.run, keeper.folder, next(self._tokens))

        state, why = records.PAUSED, ""
        try:
            with contextlib.closing(self._places(writer, keeper.run)) as places:
                running = SearchRun(book, places, keeper, self._limits, make_task, progress.update, progress.note)
                running.run()
            why = running.why_stopping
            state = records.PAUSED if why else records.DONE
        except BaseException as error:
            state, why = state_after(error, interrupted="Ctrl-C, twice")
            raise
        finally:
            lost = [trial for trial in book.trials if trial.state is TrialState.RUNNING]
            if lost:
                book.suspended()
            for trial in lost:
                keeper.changed(trial)
            keeper.end(state, why)
            shown.ended(state, why)
            self._results = SearchResults.of(book, self.name, keeper.run, keeper.folder)
            progress.update(now=True)
            progress.note(words_at_the_end(book, state, why))
        return why

    def _run_population(
        self,
        settings: PopulationTraining,
        store: RunStore,
        writer: StoreWriter,
        claimed: ClaimedSearch,
    ) -> SearchResults:
        """Carry the search out by population based training."""
        keeper, stream = claimed.keeper, ProgressStream(self._progress)
        keeper.begin()

        def note(text: str) -> None:
            stream.line(f"{escaped(self.name)}: {escaped(text)}")

        def show(text: str) -> None:
            if stream.has_picture:
                stream.draw(f"{escaped(self.name)}: {escaped(text)}")
            else:
                note(text)

        train = self._settings.member(settings, keeper.run, keeper.folder)
        running = PopulationSearch(
            settings,
            self.space,
            self._settings.first,
            train,
            mode=self.modes[0],
            seed=self._settings.seed,
            keeper=keeper,
            writer=writer,
            time_limit_s=self._limits.time_limit_s,
            show=show,
        )
        if claimed.note:
            note(claimed.note)
        note(f"{'goes on; ' if claimed.earlier is not None else ''}run {keeper.run} in {store.where}")
        if claimed.earlier is not None:
            keeper.event("continued", "; ".join(["the search goes on", *claimed.changed]))
        running.begin(store)
        workers = self._workers(keeper.run)
        shown = self._running(keeper, settings.population, running.members, part=running.population)
        end_heartbeat = writer.every(_HEARTBEAT_S, keeper.heartbeat)
        state, why = records.PAUSED, ""
        with stream, self._shown(shown):
            try:
                with contextlib.closing(MemberPlaces(workers, writer, train, settings.population)) as places:
                    running.run(places)
                why = running.why_stopping
                state = records.PAUSED if why else records.DONE
            except BaseException as error:
                state, why = state_after(error, interrupted="Ctrl-C")
                raise
            finally:
                end_heartbeat()
                running.end(state, why)
                keeper.end(state, why)
                shown.ended(state, why)
                self._results = running.results()
                note(words_at_the_end_of_population(settings.population, state, why))
        return self._results

    def _running(
        self,
        keeper: StoreKeeper,
        total: int | None,
        trials: Callable[[], Sequence[TrialFacts | TrialResult]],
        scheduler: Scheduler | None = None,
        part: Callable[[], Observable | None] = lambda: None,
    ) -> RunningSearch:
        """Return what other terminals and the page see of the search."""
        pool = "" if self._trials_in == "threads" else self._workers(keeper.run).name
        objective = Objective(self.metrics[0], self.modes[0], scheduler)
        return RunningSearch(self.name, keeper.run, pool, objective, total, trials, keeper.ask, part)

    @contextlib.contextmanager
    def _shown(self, running: RunningSearch) -> Generator[None]:
        """Let other terminals and the page see the search while the block runs."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(RopewalkError):  # the workers will not start either, and say why
                session = None
                if self._trials_in == "workers":
                    session = leased(self._session, engine=self._engine)
                    stack.callback(session.release)
                stack.enter_context(announced(running, session))
            yield

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

    @property
    def store(self) -> str | Path | None:
        """Path or URL of the store, as it was given; None: the setting `store`."""
        return self._store

    def view(self, panels: dict[str, int] | None = None) -> View:
        """Return what the page and reports show about the search, once it has run; see `SearchResults.view`."""
        return self.results().view(panels)

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the search; see `SearchResults.plot`."""
        return self.results().plot(path)

    # --- smaller steps ------------------------------------------------------------------------------------------------

    def _places(self, writer: StoreWriter, run: str) -> Places:
        if self._trials_in == "threads":
            return ThreadPlaces(self._settings.train, self._settings.max_concurrent, writer)
        return PoolPlaces(self._settings.train, writer, self._workers(run))

    def _workers(self, run: str) -> TrialWorkers:
        return TrialWorkers(
            self._settings.max_concurrent, f"search-{run}", self._engine, self._session, self._resources, self._preload
        )


def _first_configurations(space: SearchSpace, given: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the configurations of `start_with`, checked."""
    if isinstance(given, Mapping) or not all(isinstance(values, Mapping) for values in given):
        raise TypeError(f"start_with is a list of configurations, as start_with=[{{...}}], not {reprlib.repr(given)}")
    if given and not space.parameters:
        raise SearchInvalid(
            f"start_with gives {', '.join(map(repr, given[0]))}, and the search has no space to check it against; "
            "hyperparameters that the function asks for with suggest_* cannot be given: put them into a space"
        )
    return [space.validate(values) for values in given]


__all__ = ["Search"]
