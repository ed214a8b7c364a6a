"""`evaluate`: run a population method over any pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, cast, overload

from ropewalk.argument_kinds import check_callable, check_kind, check_number
from ropewalk.pool.pool import Pool
from ropewalk.pool.seeds import derive
from ropewalk.population.algorithm import Algorithm, serial_map
from ropewalk.population.algorithms.external import adapt
from ropewalk.population.checkpoint import CheckpointConfig
from ropewalk.population.decisions import Decisions, read_decisions
from ropewalk.population.evaluation import taking_trial
from ropewalk.population.executors import executor_for
from ropewalk.population.failures import FailureAction, FailurePolicy, MissingFitness
from ropewalk.population.observing import observe
from ropewalk.population.pacing.generational import Generational
from ropewalk.population.pacing.modes import GenerationMode, Mode, ModeName, SteadyMode, mode_of
from ropewalk.population.pacing.pacing import Pacing
from ropewalk.population.pacing.replay import ReplayPacing
from ropewalk.population.pacing.steady import Steady
from ropewalk.population.progress import ProgressPrinter
from ropewalk.population.rows import EvalConfig
from ropewalk.population.run import EvaluationLoop
from ropewalk.population.run_observer import RunObserver
from ropewalk.population.run_result import A, RunResult, result_of
from ropewalk.population.running import RunningEvaluation, name_of
from ropewalk.population.saved_run import RunKind, SavedRun
from ropewalk.population.stop_condition import StopCondition, Until
from ropewalk.population.worker_autoscaler import WorkerAutoscaler
from ropewalk.tracking.observed_run import ObservedRun, Track


@overload
def evaluate(
    algorithm: A,
    fitness: Callable[..., Any],
    pool: Any = None,
    *,
    generations: int | None = None,
    until: Until | None = None,
    mode: Mode | ModeName = "generation",
    failures: FailurePolicy | FailureAction = "raise",
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
    mode: Mode | ModeName = "generation",
    failures: FailurePolicy | FailureAction = "raise",
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
    mode: Mode | ModeName = "generation",
    failures: FailurePolicy | FailureAction = "raise",
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
        mode: "generation" waits for all candidates of a generation, `GenerationMode(stragglers)` perhaps not for the
            last ones; "steady", or `SteadyMode(ahead)`, tells each outcome when it arrives, and asks for another
            candidate.
        failures: the policy for evaluations that raised, or that the pool gave up (`TaskPoisoned`, `TaskTimeout`):
            "raise" an error, tell the "worst" fitness, or "drop" them. NaN ends the run then; `FailurePolicy(failures,
            nan)` has a policy for each.
        test: additional episodes that test the incumbent, and from which nothing is learnt:
            `EvalConfig(episodes, every)` or a number of episodes. Their mean is the column "test"; the incumbent with
            the best test is `RunResult.best`.
        checkpoint: a folder, or a `CheckpointConfig(folder, every, keep, resume)`: the run is saved there after each
            generation, and continues from the newest checkpoint there. Checkpoints may hold pickles, which run code:
            files that another user could have written are not used.
        log: a file for the decisions, one JSON object per line; one that is there is replaced.
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
        EvaluationFailed: a fitness is NaN and the policy for it is "raise", or all evaluations fail.
        Exception: the exception of an evaluation, with its remote traceback, if the policy for it is "raise".
        OSError: the folder of checkpoints cannot be created, or the log cannot be written.
        FileNotTrusted: other users may change files in that folder, or could have written all checkpoints there.
        CheckpointCorrupt: there are checkpoints, and all of them are damaged.
        ValueError: arguments contradict each other, or the checkpoint belongs to another algorithm or problem.
    """
    _check_kinds(test, checkpoint, log, replay, report, seed)
    method, mode, stop = _method_of(algorithm), mode_of(mode), StopCondition(generations, until)
    policy = FailurePolicy(failures) if isinstance(failures, str) else failures
    _check(method, stop, policy, pool, workers, replays=replay is not None, has_tests=test is not None)
    history = _history_of(method, mode, seed, checkpoint, log, replay)
    executor = executor_for(
        pool, taking_trial(fitness, method.evaluator().num_arguments), history.seed, in_bulk=history.in_bulk
    )
    display = ProgressPrinter(type(method).__name__, generations, shown=progress)
    observer = RunObserver(method, history.decisions, history.saved, display, report, stop)
    loop = EvaluationLoop(
        method,
        executor,
        history.pacing,
        history.decisions,
        MissingFitness(policy),
        test=test if test is None or isinstance(test, EvalConfig) else EvalConfig(int(test)),
        workers=workers,
        end_row=observer.end_row,
        failed=observer.failed,
    )
    is_over = observer.restore(loop)
    can_pause = history.saved.is_kept
    options = {"generations": generations, **_settings_of(mode)}
    watched = observe(track, method, history.run_seed, options, can_pause=can_pause)
    running = RunningEvaluation(
        method, loop, watched, fitness=name_of(fitness), generations=generations, can_pause=can_pause
    )
    observer.begin(watched, running)
    try:
        with watched, display, running.shown(pool, track if isinstance(track, ObservedRun) else None):
            method.map = executor.map
            history.decisions.open()
            if not is_over:
                loop.run()
    finally:
        method.map = serial_map
        executor.close()
        history.decisions.close()
    return result_of(
        method,
        loop,
        history.decisions,
        history.saved.failures,
        fitness=name_of(fitness),
        shares_process=executor.shares_process,
    )


def _check_kinds(test: object, checkpoint: object, log: object, replay: object, report: object, seed: object) -> None:
    check_kind("test", test, EvalConfig | Integral, "a number of episodes, or EvalConfig(episodes, every)")
    check_kind("checkpoint", checkpoint, CheckpointConfig | str | PathLike, "a folder, or CheckpointConfig(folder)")
    check_kind("log", log, str | PathLike, 'the path of a file, "decisions.jsonl"')
    check_kind("replay", replay, Decisions | str | PathLike | Iterable, 'the path of a log, "decisions.jsonl"')
    check_number("seed", seed, Integral, "a whole number", least=0)
    check_callable("report", report, "a function (generation, **row)")


def _check(
    algorithm: Algorithm[Any],
    stop: StopCondition,
    policy: object,
    pool: object,
    workers: object,
    *,
    replays: bool,
    has_tests: bool,
) -> None:
    if not isinstance(policy, FailurePolicy):
        raise TypeError(
            f'failures must be "raise", "worst", "drop", or a FailurePolicy, such as FailurePolicy(nan="worst"), '
            f"not {policy!r}"
        )
    if stop.needs_tests and not has_tests:
        raise ValueError("until asks for the column 'test', and this run has no tests; give test=8, or another column")
    check_kind("workers", workers, WorkerAutoscaler, "ropewalk.population.WorkerAutoscaler(least, most)")
    if workers is not None and not isinstance(pool, Pool):
        raise ValueError("workers= sizes a ropewalk.Pool; other pools keep their size: leave it out")
    if stop.is_none and not replays and not algorithm.can_finish:
        raise ValueError(
            f"nothing ends this run: {type(algorithm).__name__} goes on for ever; give generations=..., or until=..."
        )


def _method_of(algorithm: Algorithm[Any] | Any) -> Algorithm[Any]:
    if isinstance(algorithm, type):
        raise TypeError(
            f"algorithm must be an object, not the class {algorithm.__name__}; write {algorithm.__name__}(...)"
        )
    return cast("Algorithm[Any]", algorithm if isinstance(algorithm, Algorithm) else adapt(algorithm))


class _History(NamedTuple):
    """What a run repeats, continues and writes down, and the seeds that follow."""

    pacing: Pacing
    saved: SavedRun
    decisions: Decisions
    run_seed: int
    seed: int
    """Seed of the evaluations."""
    in_bulk: bool
    """Whether all evaluations of an ask are waited for."""


def _history_of(
    method: Algorithm[Any],
    mode: Mode,
    seed: int | None,
    checkpoint: CheckpointConfig | str | Path | None,
    log: str | Path | None,
    replay: Decisions | str | Path | Iterable[str] | None,
) -> _History:
    run_seed = seed if seed is not None else method.seed
    earlier = read_decisions(replay) if replay is not None else None
    pacing = _pacing_of(method, mode) if earlier is None else ReplayPacing(earlier.instructions)
    saved = SavedRun(checkpoint, RunKind(type(method).__name__, run_seed, type(pacing).__name__), method.generation)
    decisions = _decisions_of(method, run_seed, saved.begun_at, earlier, log)
    # An algorithm that continues in another run gets new evaluation seeds, not those it has already learnt from.
    evaluation_seed = derive(run_seed, saved.begun_at) if saved.begun_at else run_seed
    in_bulk = earlier is None and isinstance(mode, GenerationMode) and mode.stragglers.action == "wait"
    return _History(pacing, saved, decisions, run_seed, evaluation_seed, in_bulk)


def _pacing_of(method: Algorithm[Any], mode: Mode) -> Pacing:
    match mode:
        case GenerationMode(stragglers):
            return Generational(lambda: method.population, stragglers)
        case SteadyMode(ahead):
            return Steady(ahead)


def _settings_of(mode: Mode) -> dict[str, object]:
    """Return what the run in the store says of a mode."""
    match mode:
        case GenerationMode(stragglers):
            return {"mode": "generation", "stragglers": stragglers.action}
        case SteadyMode(ahead):
            return {"mode": "steady", "ahead": ahead}


def _decisions_of(
    method: Algorithm[Any], seed: int, begun_at: int, earlier: Decisions | None, log: str | Path | None
) -> Decisions:
    """Return a log with the decisions to replay, which must belong to this run, or an empty one."""
    about = {"algorithm": type(method).__name__, "population": method.population, "seed": seed, "after": begun_at}
    if earlier is not None and earlier.about and earlier.about != about:
        raise ValueError(f"the log to replay is of {earlier.about}, and this run is of {about}")
    decisions = Decisions(Path(log) if log is not None else None, about)
    if earlier is not None:
        decisions.begin_with(list(earlier))
    return decisions


__all__ = ["evaluate"]
