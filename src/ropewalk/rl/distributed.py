"""Runs an experiment as a program, and shows its progress."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ropewalk as rw
from ropewalk.escaping import escaped
from ropewalk.program.restart_rule import restart_rule
from ropewalk.rl.agents.agent import Agent
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.asynchronous import AsyncLearner
from ropewalk.rl.asynchronous_actor import async_actor
from ropewalk.rl.deliveries import lag_in_words
from ropewalk.rl.evaluators import evaluate_forever
from ropewalk.rl.inference.server import InferenceServer
from ropewalk.rl.interruptions import Interruptions
from ropewalk.rl.learner_node import LearnerLook, LearnerStatus
from ropewalk.rl.learner_rank import LearnerRank
from ropewalk.rl.learners.optimizers import uses_compiler
from ropewalk.rl.lockstep import LockstepLearner, lockstep_actor
from ropewalk.rl.logs.logger import Logger
from ropewalk.rl.progress import ProgressLog
from ropewalk.rl.result import ExperimentResult, TrainingOutcome
from ropewalk.rl.running import RunningExperiment
from ropewalk.rl.standstill import TrainingStandstill
from ropewalk.tracking.observed_run import ObservedRun, Track

logger = logging.getLogger(__name__)

_STATUS_S = 0.2
_PRELOAD = ("torch", "gymnasium", __name__)
"""Modules that all processes share. This module imports what learners, actors and the others are made of: 0.1 s of CPU
time in each process."""
_CHECKPOINT_GRACE_S = 4.0
_CHECKPOINT_S: float | None = None
"""Seconds between states from which a learner that died goes on. None: a second where that is cheap; saving takes at
most a twentieth of the time, for it may have gigabytes of replay to write."""


@dataclass(frozen=True)
class ProcessCounts:
    """Which processes an experiment has.

    Attributes:
        actors: number of processes that collect experience.
        mode: "lockstep" or "async".
        inference: number of servers that choose actions for the actors.
        evaluators: number of processes that evaluate the newest weights.
        learners: number of learners, which average their gradients.
    """

    actors: int
    mode: Literal["lockstep", "async"]
    inference: int = 0
    evaluators: int = 0
    learners: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.learners <= max(1, self.actors):
            raise ValueError(
                f"learners={self.learners} and actors={self.actors}: there is at least one learner, and each of them "
                "learns from actors of its own; use fewer learners or more actors"
            )
        if self.learners > 1 and self.mode == "lockstep":
            raise ValueError(
                f"learners={self.learners}: in lock-step one learner learns from the blocks of all actors; say "
                'mode="async" with an agent that can, such as rl.IMPALA, or leave out learners'
            )
        if self.inference and self.mode == "lockstep":
            raise ValueError(
                "in lock-step every actor has the weights of its round, so inference servers have nothing to do; leave "
                'out inference, or say mode="async"'
            )


def build_program(
    assembly: Assembly, distribution: ProcessCounts, *, hold: bool = False, restart: str | rw.Restart = "on_failure"
) -> rw.Program:
    """Return the program of an experiment.

    Args:
        assembly: makes the parts.
        distribution: which processes there are.
        hold: whether the learner stays after the end, until the script has its outcome.
        restart: whether processes that fail are restarted; by default up to five times a minute each. Several learners
            restart together.

    Raises:
        ValueError: the agent cannot be used with this environment or network, or not with several learners.
    """
    spec = assembly.spec(tells=True)
    assembly.policy(spec, 0)  # so that a network or limits that do not fit are refused here
    assembly.tables(spec)
    if distribution.learners > 1:
        agent, network = assembly.experiment.agent, assembly.experiment.network
        agent.make_learner(spec, network, seed=0).gradient_steps()  # raises if they cannot be averaged
    program = rw.Program("rl")
    options: dict[str, Any] = {"restart": restart, "preload": preloaded_for(assembly.experiment.agent)}
    clients = _add_learners(program, assembly, distribution, options, hold=hold)
    client = clients[0]
    in_lockstep = distribution.mode == "lockstep"
    arguments: list[Any] = [client if in_lockstep else clients, assembly]
    if distribution.inference:
        server = rw.Service(InferenceServer, assembly.policy_of, client)
        inference = program.add(server, name="inference", replicas=distribution.inference, **options)
        arguments.append(inference.client(on_lost="retry"))
    actor = lockstep_actor if in_lockstep else async_actor
    program.add(rw.Worker(actor, *arguments), name="actors", replicas=distribution.actors, **options)
    if distribution.evaluators:
        program.add(
            rw.Worker(evaluate_forever, client, assembly),
            name="evaluators",
            replicas=distribution.evaluators,
            essential=False,
            **options,
        )
    return program


def preloaded_for(agent: Agent) -> tuple[str, ...]:
    """Return the modules that all processes of a program share.

    Optimizers but ours import torch._dynamo in their first process, for a second: shared, it is there when a learner is
    started again. An agent that is not ours may have any.
    """
    factories = [getattr(agent, name, None) for name in ("optimizer", "critic_optimizer")]
    is_ours = type(agent).__module__.startswith("ropewalk.")
    return _PRELOAD if is_ours and not any(map(uses_compiler, factories)) else ("torch._dynamo", *_PRELOAD)


def _add_learners(
    program: rw.Program, assembly: Assembly, distribution: ProcessCounts, options: dict[str, Any], *, hold: bool
) -> list[Any]:
    """Add the learners, and return their clients by rank."""
    num = distribution.learners
    options = {**options, "name": "learner", "checkpoint_s": _CHECKPOINT_S}
    if num == 1:
        learner_class = LockstepLearner if distribution.mode == "lockstep" else AsyncLearner
        learner = program.add(rw.Service(learner_class, assembly, hold=hold), **options)
        return [learner.client(on_lost="retry")]
    rank = rw.Service(LearnerRank, assembly, program.declare("learner"), hold=hold)
    options |= {"restart": dataclasses.replace(restart_rule(options["restart"]), strategy="together"), "replicas": num}
    ranks = program.add(rank, **options)
    return [ranks.client(on_lost="retry")[number] for number in range(num)]


def drive_program(
    assembly: Assembly, distribution: ProcessCounts, log: Logger, *, engine: str | None = None, track: Track = False
) -> ExperimentResult:
    """Launch the program, log its progress until the end, and return the result.

    Raises:
        ProgramFailed: a node failed for good.
        RunStopped: it was asked to stop, from another terminal or the page.
        NotFinite: experience, a loss or a gradient is NaN or infinite.
        LimiterDeadlock, LimiterStuck: the limiters of replay allow neither inserting nor sampling.
    """
    program = build_program(assembly, distribution, hold=True)
    progress = ProgressLog(log, assembly.experiment.steps)
    unit = "rounds" if distribution.mode == "lockstep" else "updates"
    run = track.run.id if isinstance(track, ObservedRun) and track.run else ""
    shown = RunningExperiment(assembly, progress, unit=unit, learners=distribution.learners, run=run)
    with (
        Interruptions(deferred=False),
        program.launch(engine=engine, track=track, shown_as=shown) as running,
        shown.noted(),
        _patient(running),
    ):
        shown.program = running
        learners = running.client("learner", on_lost="retry")
        try:
            agent, ranks = assembly.experiment.agent, range(distribution.learners)
            outcome = _driven([learners[rank] for rank in ranks], progress, shown, agent.unroll * agent.envs)
        except rw.CallError:
            running.wait()  # raises what ended the program
            shown.check_stop()
            raise
    return ExperimentResult(outcome, progress.rows, progress.seconds, assembly)


def _driven(
    learners: Sequence[Any], progress: ProgressLog, shown: RunningExperiment, block_steps: int
) -> TrainingOutcome:
    """Log the progress of learners until the end, and return what they have learned."""
    num_problems, standstill = 0, TrainingStandstill(block_steps)
    num_restored: int | None = None
    while not (status := learners[0].status(len(progress.evaluations), num_problems)).done:
        said = _standing_still(standstill, status)
        if num_restored is None:  # what a learner restores that is started again later may not have been logged yet
            num_restored = int(status.num_restored)
        bound = standstill.limit(time.monotonic(), status.bound, status.waits_for, status.slow_calls)
        _show(status, progress, bound, num_restored)
        num_problems += len(status.problems)
        for problem in status.problems:
            shown.happened("", problem)
        if status.failure:
            raise status.failure
        for words in said:
            logger.warning("%s", words)
            shown.happened("", words)
        if shown.wants_look:
            _look(shown, learners)
        time.sleep(_STATUS_S)
    _show(status, progress, status.bound, status.num_restored if num_restored is None else num_restored)
    return learners[0].outcome()


def _standing_still(standstill: TrainingStandstill, status: LearnerStatus) -> list[str]:
    counters = status.counters
    return standstill.look(
        time.monotonic(),
        counters.steps + counters.stale_steps,
        counters.updates,
        blocks={group: facts.blocks + facts.stale + facts.refused for group, facts in status.actors.items()},
        waits_for=status.waits_for,
        slow=status.slow_calls,
    )


def _look(shown: RunningExperiment, learners: Sequence[Any]) -> None:
    """Ask all learners for what somebody wants to see closely."""
    looks: list[LearnerLook] = [learner.look() for learner in learners]
    names = ["" if len(looks) == 1 else f" of learner {rank}" for rank in range(len(looks))]
    shown.look(
        looks[0].settings,
        {f"{name}{of}": info for look, of in zip(looks, names, strict=True) for name, info in look.tables.items()},
        {group: facts for look in looks for group, facts in look.actors.items()},
        {group: counts for look in looks for group, counts in look.lags.items()},
    )


@contextlib.contextmanager
def _patient(running: rw.RunningProgram) -> Generator[None]:
    """After an interruption, give the learner the time to write a last checkpoint, which another interruption cuts."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        running.stop(_CHECKPOINT_GRACE_S)
        raise


def _show(status: LearnerStatus, log: ProgressLog, bound: str, num_restored: int = 0) -> None:
    for problem in status.problems:
        logger.warning("%s", escaped(problem))
    for number, scores in enumerate(status.evaluations, len(log.evaluations)):
        log.evaluation(scores, is_new=number >= num_restored)
    label, lag = "end" if status.done else "progress", lag_in_words(status.actors)
    log.progress(status.counters, status.metrics, bound, lag, label=label)


__all__ = ["ProcessCounts", "build_program", "drive_program"]
