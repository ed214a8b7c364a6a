"""`evaluate`: run a population method over any pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast, get_args, overload

from ropewalk.control.view import View
from ropewalk.near_names import check_choice
from ropewalk.pool.pool import Pool
from ropewalk.pool.seeds import derive
from ropewalk.population.algorithm import Algorithm, serial_map
from ropewalk.population.algorithms.external import adapt
from ropewalk.population.checkpoint import CheckpointConfig
from ropewalk.population.decisions import Decisions, Fail, read_decisions
from ropewalk.population.evaluation import own, taking_trial
from ropewalk.population.executors import executor_for
from ropewalk.population.failures import FailurePolicy, Policy
from ropewalk.population.observing import observe
from ropewalk.population.pacing.generational import Generational
from ropewalk.population.pacing.pacing import Pacing
from ropewalk.population.pacing.replay import ReplayPacing
from ropewalk.population.pacing.steady import Steady
from ropewalk.population.pacing.stragglers import StragglerPolicy
from ropewalk.population.progress import ProgressPrinter
from ropewalk.population.rows import EvalConfig, Row
from ropewalk.population.run import EvaluationLoop
from ropewalk.population.running import RunningEvaluation, name_of
from ropewalk.population.saved_run import RunKind, SavedRun
from ropewalk.population.view import ended_view, html_of_rows
from ropewalk.population.worker_autoscaler import WorkerAutoscaler
from ropewalk.tracking.observed_run import ObservedRun, Track

Until = Callable[[Row], object] | Mapping[str, float]
Mode = Literal["generation", "steady"]


A = TypeVar("A", bound=Algorithm[Any])


@dataclass(slots=True)
class RunResult(Generic[A]):
    """The result of a run."""

    algorithm: A
    """The algorithm after the last tell; for an object of another library, the algorithm that `adapt` returned."""
    table: list[Row]
    """One row per generation: fitness, tests, figures of the algorithm, times."""
    best: Any
    """The solution to use: the incumbent with the best test; without tests, the last incumbent."""
    best_test: float
    """The mean fitness of the best test; NaN without tests."""
    best_fitness: float
    """The best fitness of any single evaluation, as in the column "best"; often the result of chance."""
    decisions: Decisions
    """The log of decisions, in order: `evaluate(..., replay=run.decisions)` repeats the run."""
    evaluations: int
    steps: int
    """Number of environment steps, as far as outcomes report them."""
    seconds: float
    launcher_ms: float
    """CPU time of this process per evaluation, over all its threads, in ms; NaN if this process ran the evaluations."""
    checkpoint_failures: list[str]
    """Error messages of checkpoints that could not be written."""
    fitness: str = ""
    """Name of the fitness function."""

    def view(self, panels: dict[str, int] | None = None) -> View:
        """Return what the page and reports show about the run, now that it has ended.

        Args:
            panels: names of the panels whose data is wanted, with cursors; see `ropewalk.control.view.Observable`.
                None: all of them.
        """
        return ended_view(self.algorithm, self.table, self.evaluations, self.seconds, self.fitness, panels)

    def _repr_html_(self) -> str:
        return html_of_rows(type(self.algorithm).__name__, str(self), self.table)

    def __str__(self) -> str:
        rate = self.evaluations / self.seconds if self.seconds else 0.0
        test = "" if self.best_test != self.best_test else f"best test {self.best_test:.6g}, "
        own = "" if self.launcher_ms != self.launcher_ms else f", {self.launcher_ms:.3f} ms of the launcher for each"
        return (
            f"{type(self.algorithm).__name__}: {test}best evaluation {self.best_fitness:.6g}, "
            f"{self.algorithm.generation} generations, {self.evaluations} evaluations in {self.seconds:.1f} s "
            f"({rate:.4g}/s{own})"
        )


@overload
def evaluate(
    algorithm: A,
    fitness: Callable[..., Any],
    pool: Any = None,
    *,
    generations: int | None = None,
    until: Until | None = None,
    mode: Mode = "generation",
    stragglers: StragglerPolicy | None = None,
    ahead: float = 1.0,
    failures: Policy = "raise",
    nan: Policy = "raise",
    test: EvalConfig | int | None = None,
    checkpoint: CheckpointConfig | str | Path | None = None,
    log: str | Path | None = None,
    replay: Decisions | str | Path | Iterable[str] | None = None,
    report: Callable[..., object] | None = None,
    progress: bool | None = None,
    workers: WorkerAutoscaler | None = None,
    seed: int | None = None,
    track: Track = False,
) -> RunResult[A]: ...
@overload
def evaluate(
    algorithm: Any,
    fitness: Callable[..., Any],
    pool: Any = None,
    *,
    generations: int | None = None,
    until: Until | None = None,
    mode: Mode = "generation",
    stragglers: StragglerPolicy | None = None,
    ahead: float = 1.0,
    failures: Policy = "raise",
    nan: Policy = "raise",
    test: EvalConfig | int | None = None,
    checkpoint: CheckpointConfig | str | Path | None = None,
    log: str | Path | None = None,
    replay: Decisions | str | Path | Iterable[str] | None = None,
    report: Callable[..., object] | None = None,
    progress: bool | None = None,
    workers: WorkerAutoscaler | None = None,
    seed: int | None = None,
    track: Track = False,
) -> RunResult[Any]: ...
def evaluate(
    algorithm: Algorithm[Any] | Any,
    fitness: Callable[..., Any],
    pool: Any = None,
    *,
    generations: int | None = None,
    until: Until | None = None,
    mode: Mode = "generation",
    stragglers: StragglerPolicy | None = None,
    ahead: float = 1.0,
    failures: Policy = "raise",
    nan: Policy = "raise",
    test: EvalConfig | int | None = None,
    checkpoint: CheckpointConfig | str | Path | None = None,
    log: str | Path | None = None,
    replay: Decisions | str | Path | Iterable[str] | None = None,
    report: Callable[..., object] | None = None,
    progress: bool | None = None,
    workers: WorkerAutoscaler | None = None,
    seed: int | None = None,
    track: Track = False,
) -> RunResult[Any]:
    """Run a population method: ask for candidates, evaluate them on a pool, and tell their outcomes.

    With `mode="generation"` and no dropped or carried stragglers, the result is bit-identical for any pool, any number
    of workers, any worker deaths and any order in which evaluations end. In all other cases the order of events is in
    the log of decisions, and a replay of the log gives the same result.

    Example:
        >>> import numpy as np
        >>> import ropewalk as rw
        >>> from ropewalk.population import OpenAIES, evaluate
        >>> def fitness(x):  # x has the shape of `initial`, (4,)
        ...     return -float(np.sum((x - 0.5) ** 2))
        >>> with rw.Pool(2) as pool:
        ...     run = evaluate(OpenAIES(np.zeros(4), population=32, sigma=0.1, seed=1), fitness, pool, generations=20)
        >>> bool(fitness(run.best) > fitness(np.zeros(4)))
        True

    Args:
        algorithm: an `Algorithm`, or any object with `ask` and `tell` (see `adapt`). An algorithm that has run before
            continues.
        fitness: `fitness(x)` or `fitness(x, trial)` returns a number to maximise, or an `Outcome`. It must depend on
            its arguments only, and take its randomness from `trial` (`trial.seed`, `trial.rng`), which stays the same
            when an evaluation is retried.
        pool: a `ropewalk.Pool` of any engine; a pool or executor like those of the standard library; None evaluates in
            this process.
        generations: total number of generations, including those before a resumed checkpoint; None for no limit.
        until: stop when a row has at least these values, such as {"test": 475}, or when a function of the row is true.
        mode: "generation" waits for all candidates of a generation; "steady" tells each outcome when it arrives, and
            asks for another candidate.
        stragglers: the policy for the last evaluations of a generation: `StragglerPolicy.wait()` (the default),
            `StragglerPolicy.drop(after, grace)` or `StragglerPolicy.carry(after, grace)`.
        ahead: number of submitted candidates per worker in steady state.
        failures: the policy for evaluations that raised, or that the pool gave up (`TaskPoisoned`, `TaskTimeout`):
            "raise" an error, tell the "worst" fitness, or "drop" them.
        nan: the policy for evaluations that returned NaN, with the same values.
        test: additional episodes that test the incumbent, and from which nothing is learnt:
            `EvalConfig(episodes, every)` or a number of episodes. Their mean is the column "test"; the incumbent with
            the best test is `RunResult.best`.
        checkpoint: a folder, or a `CheckpointConfig(folder, every, keep, resume)`: the run is saved there after each
            generation, and continues from the newest checkpoint there. Checkpoints may hold pickles, which run code:
            files that another user could have written are not used.
        log: a file for the decisions, one JSON object per line.
        replay: the log of an earlier run of an algorithm with the same arguments, whose decisions are repeated.
        report: called as `report(generation, **row)` after each generation.
        progress: whether to show each row on standard error; None: in a terminal, and elsewhere one a minute.
        workers: adapts the number of workers to the number of candidates: `WorkerAutoscaler(least, most)`.
        seed: seed of the evaluations; defaults to the algorithm's seed, or 0.
        track: True, or the name of a project: rows, failed evaluations, deaths of workers and checkpoints are kept as a
            run: the current run of this process, or a new one; see `ropewalk.tracking`.

    Returns:
        The result of the run.

    Raises:
        EvaluationFailed: a fitness is NaN and `nan="raise"`, or all evaluations fail.
        Exception: the exception of an evaluation, with its remote traceback, if `failures="raise"`.
        OSError: the folder of checkpoints cannot be created, or the log cannot be written.
        FileNotTrusted: other users may change files in that folder, or could have written all checkpoints there.
        CheckpointCorrupt: there are checkpoints, and all of them are damaged.
        ValueError: arguments contradict each other, or the checkpoint belongs to another algorithm or problem.
    """
    method = _method_of(algorithm)
    _check(method, mode, stragglers, generations, until, replay, workers, has_tests=test is not None)
    if workers is not None and not isinstance(pool, Pool):
        raise ValueError("workers= sizes a ropewalk.Pool; other pools keep their size: leave it out")
    stragglers = stragglers or StragglerPolicy.wait()
    run_seed = seed if seed is not None else method.seed
    earlier = read_decisions(replay) if replay is not None else None
    pacing = _pacing_of(method, mode, stragglers, ahead, earlier)
    saved = SavedRun(checkpoint, RunKind(type(method).__name__, run_seed, type(pacing).__name__), method.generation)
    decisions = _decisions_of(method, run_seed, saved.begun_at, earlier, log)
    # An algorithm that continues in another run gets new evaluation seeds, not those it has already learnt from.
    evaluation_seed = derive(run_seed, saved.begun_at) if saved.begun_at else run_seed
    in_bulk = isinstance(pacing, Generational) and stragglers.action == "wait"
    num_arguments = method.evaluator().num_arguments
    executor = executor_for(pool, taking_trial(fitness, num_arguments), evaluation_seed, in_bulk=in_bulk)
    display = ProgressPrinter(type(method).__name__, generations, shown=progress)
    observer = _RunObserver(method, decisions, saved, display, report, generations, until)
    loop = EvaluationLoop(
        method,
        executor,
        pacing,
        decisions,
        FailurePolicy(failures, nan),
        test=EvalConfig(test) if isinstance(test, int) else test,
        workers=workers,
        end_row=observer.end_row,
        failed=observer.failed,
    )
    is_over = observer.restore(loop)
    options = {"generations": generations, "mode": mode, "ahead": ahead}
    watched = observe(track, method, run_seed, options, can_pause=saved.is_kept)
    fitness_name = name_of(fitness)
    running = RunningEvaluation(
        method, loop, watched, fitness=fitness_name, generations=generations, can_pause=saved.is_kept
    )
    observer.begin(watched, running)
    try:
        with watched, display, running.shown(pool, track if isinstance(track, ObservedRun) else None):
            method.map = executor.map
            if not is_over:
                loop.run()
    finally:
        method.map = serial_map
        executor.close()
        decisions.close()
    return _run_of(
        method, loop, decisions, saved.failures, fitness=fitness_name, shares_process=executor.shares_process
    )


class _RunObserver:
    """Writes down, shows and saves what an evaluation loop does, and says when it is enough."""

    def __init__(
        self,
        method: Algorithm[Any],
        decisions: Decisions,
        saved: SavedRun,
        display: ProgressPrinter,
        report: Callable[..., object] | None,
        generations: int | None,
        until: Until | None,
    ) -> None:
        self._method, self._decisions, self._saved = method, decisions, saved
        self._display, self._report = display, report
        self._generations, self._until = generations, until
        self._loop: EvaluationLoop
        self._watched: ObservedRun
        self._has_resumed = False
        self._running: RunningEvaluation

    def restore(self, loop: EvaluationLoop) -> bool:
        """Bring the loop to where the newest checkpoint ends; returns whether nothing is left to do."""
        self._loop = loop
        self._has_resumed = self._saved.restore(loop)
        if not self._has_resumed:
            return False
        self._display.note(f"going on after generation {self._method.generation}, from {self._saved.path}")
        return bool(loop.rows) and self._is_enough(loop.rows[-1])

    def begin(self, watched: ObservedRun, running: RunningEvaluation) -> None:
        """Set the run and the view that are told from now on."""
        self._watched, self._running = watched, running
        if self._has_resumed:
            watched.resumed_from(self._method.generation)

    def end_row(self, row: Row) -> bool:
        """Handle the end of a generation; returns whether it was the last one."""
        generation = self._method.generation
        self._decisions.flush()
        self._display.row(row)
        if self._report is not None:
            self._report(int(row["generation"]), **{name: row[name] for name in row if name != "generation"})
        self._watched.row(row, generation)
        path = self._saved.save(self._loop, generation)
        if path is not None:
            self._watched.checkpoint(generation, path)
            self._running.happened("checkpoint", f"generation {generation} is saved in {path}")
        is_over = self._is_enough(row)
        if not is_over:
            self._watched.interrupt(generation, is_saved=path is not None)
        return is_over

    def failed(self, failure: Fail) -> None:
        """Handle an evaluation that failed."""
        self._watched.event("evaluation failed", failure.why, ask=failure.ticket.ask)
        self._running.failed(failure)

    def _is_enough(self, row: Row) -> bool:
        enough = self._generations is not None and self._method.generation >= self._generations
        return enough or reached(self._until, row)


def reached(until: Until | None, row: Row) -> bool:
    """Whether a row meets a condition: a function of the row, or minimum values of columns.

    Raises:
        ValueError: the condition names a column that this run does not have.
    """
    if until is None:
        return False
    if callable(until):
        return bool(until(row))
    columns = until
    for name in columns:
        if name not in row and name != "test":  # some rows have no test
            raise ValueError(f"until asks for the column {name!r}, and the rows of this run have {', '.join(row)}")
    return all(row.get(name, float("-inf")) >= least for name, least in columns.items())


def _check(
    algorithm: Algorithm[Any],
    mode: str,
    stragglers: StragglerPolicy | None,
    generations: int | None,
    until: Until | None,
    replay: object,
    workers: object,
    *,
    has_tests: bool,
) -> None:
    check_choice("mode", mode, get_args(Mode))
    if stragglers is not None and not isinstance(stragglers, StragglerPolicy):
        raise TypeError(
            f"stragglers must be a StragglerPolicy, such as StragglerPolicy.drop(after=0.9), not {stragglers!r}"
        )
    if until is not None and not callable(until) and not isinstance(until, Mapping):
        raise TypeError(f"until must be a function of a row, or columns with their least values, not {until!r}")
    if not has_tests and isinstance(until, Mapping) and "test" in until:
        raise ValueError("until asks for the column 'test', and this run has no tests; give test=8, or another column")
    if mode == "steady" and stragglers is not None:
        raise ValueError("stragglers are the last ones of a generation; steady state has none: leave `stragglers` out")
    if generations is not None and not isinstance(generations, int):
        raise TypeError(f"generations must be a whole number, not {generations!r}")
    if generations is not None and generations < 1:
        raise ValueError(f"generations must be at least 1, not {generations}")
    if workers is not None and not isinstance(workers, WorkerAutoscaler):
        raise TypeError(f"workers must be ropewalk.population.WorkerAutoscaler(least, most), not {workers!r}")
    if generations is None and until is None and replay is None and not algorithm.can_finish:
        raise ValueError(
            f"nothing ends this run: {type(algorithm).__name__} goes on for ever; give generations=..., or until=..."
        )


def _method_of(algorithm: Algorithm[Any] | Any) -> Algorithm[Any]:
    if isinstance(algorithm, type):
        raise TypeError(
            f"algorithm must be an object, not the class {algorithm.__name__}; write {algorithm.__name__}(...)"
        )
    return cast("Algorithm[Any]", algorithm if isinstance(algorithm, Algorithm) else adapt(algorithm))


def _pacing_of(
    method: Algorithm[Any], mode: Mode, stragglers: StragglerPolicy, ahead: float, earlier: Decisions | None
) -> Pacing:
    if earlier is not None:
        return ReplayPacing(earlier.instructions)
    if mode == "generation":
        return Generational(lambda: method.population, stragglers)
    return Steady(ahead)


def _decisions_of(
    method: Algorithm[Any], seed: int, begun_at: int, earlier: Decisions | None, log: str | Path | None
) -> Decisions:
    """Return the decisions to replay, which must belong to this run, or an empty log."""
    about = {"algorithm": type(method).__name__, "population": method.population, "seed": seed, "after": begun_at}
    if earlier is not None and earlier.about and earlier.about != about:
        raise ValueError(f"the log to replay is of {earlier.about}, and this run is of {about}")
    return earlier or Decisions(Path(log) if log is not None else None, about)


def _run_of(
    method: Algorithm[Any],
    loop: EvaluationLoop,
    decisions: Decisions,
    checkpoint_failures: list[str],
    *,
    fitness: str,
    shares_process: bool,
) -> RunResult[Any]:
    tested = loop.best_tested is not None
    return RunResult(
        algorithm=method,
        table=loop.rows,
        best=own(loop.best_tested if tested else method.incumbent()),
        best_test=loop.best_test if tested else float("nan"),
        best_fitness=loop.best_fitness,
        decisions=decisions,
        fitness=fitness,
        evaluations=loop.num_evaluations,
        steps=loop.num_steps,
        seconds=loop.seconds,
        launcher_ms=float("nan") if shares_process else 1e3 * loop.cpu_s / max(1, loop.num_evaluations),
        checkpoint_failures=checkpoint_failures,
    )
