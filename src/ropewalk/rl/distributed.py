"""Runs an experiment as a program, and shows its progress."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

import ropewalk as rw
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.asynchronous import AsyncLearner
from ropewalk.rl.asynchronous_actor import async_actor
from ropewalk.rl.evaluators import evaluate_forever
from ropewalk.rl.inference.server import InferenceServer
from ropewalk.rl.interruptions import Interruptions
from ropewalk.rl.learner_node import LearnerStatus
from ropewalk.rl.lockstep import LockstepLearner, lockstep_actor
from ropewalk.rl.logs.logger import Logger
from ropewalk.rl.progress import ProgressLog
from ropewalk.rl.result import ExperimentResult

logger = logging.getLogger(__name__)

_STATUS_S = 0.2
_PRELOAD = ("torch", "torch._dynamo", "gymnasium")
"""Modules that all processes share; the first optimizer of a process imports torch._dynamo, which takes seconds."""
_CHECKPOINT_GRACE_S = 4.0
_CHECKPOINT_S = 5.0
"""Seconds between states from which a learner that died goes on."""


@dataclass(frozen=True)
class ProcessCounts:
    """Which processes an experiment has.

    Attributes:
        actors: that collect experience.
        mode: "lockstep" or "async".
        inference: that choose actions for the actors.
        evaluators: that evaluate the newest weights.
    """

    actors: int
    mode: Literal["lockstep", "async"]
    inference: int = 0
    evaluators: int = 0

    def __post_init__(self) -> None:
        if self.inference and self.mode == "lockstep":
            raise ValueError(
                "in lock-step every actor has the weights of its round, so inference servers have nothing to do; leave "
                'out inference, or say mode="async"'
            )


def build_program(assembly: Assembly, distribution: ProcessCounts, *, hold: bool = False) -> rw.Program:
    """Return the program of an experiment.

    Args:
        assembly: makes the parts.
        distribution: which processes there are.
        hold: whether the learner stays after the end, until the script has its outcome.

    Raises:
        ValueError: the agent cannot be used with this environment or network.
    """
    spec = assembly.spec()
    assembly.policy(spec, 0)  # so that a network or limits that do not fit are refused here
    assembly.tables(spec)
    program = rw.Program("rl")
    options: dict[str, Any] = {"restart": "on_failure", "preload": _PRELOAD}
    learner_class, actor = (
        (LockstepLearner, lockstep_actor) if distribution.mode == "lockstep" else (AsyncLearner, async_actor)
    )
    learner = program.add(
        rw.Service(learner_class, assembly, hold=hold), name="learner", checkpoint_s=_CHECKPOINT_S, **options
    )
    client = learner.client(on_lost="retry")
    arguments: list[Any] = [client, assembly]
    if distribution.inference:
        server = rw.Service(InferenceServer, assembly.policy_of, client)
        inference = program.add(server, name="inference", replicas=distribution.inference, **options)
        arguments.append(inference.client(on_lost="retry"))
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


def drive_program(
    assembly: Assembly, distribution: ProcessCounts, log: Logger, *, engine: str | None = None
) -> ExperimentResult:
    """Launch the program, log its progress until the end, and return the result.

    Raises:
        ProgramFailed: a node failed for good.
        NotFinite: experience, a loss or a gradient is NaN or infinite.
        LimiterDeadlock, LimiterStuck: the limiters of replay allow neither inserting nor sampling.
    """
    program = build_program(assembly, distribution, hold=True)
    progress = ProgressLog(log, assembly.experiment.steps)
    with Interruptions(deferred=False), program.launch(engine=engine) as running, _patient(running):
        learner = running.client("learner", on_lost="retry")
        try:
            num_problems = 0
            while not (status := _shown(learner.status(len(progress.evaluations), num_problems), progress)).done:
                num_problems += len(status.problems)
                if status.failure:
                    raise status.failure
                time.sleep(_STATUS_S)
            outcome = learner.outcome()
        except rw.CallError:
            running.wait()  # raises what ended the program
            raise
    return ExperimentResult(outcome, progress.rows, progress.seconds, assembly)


@contextlib.contextmanager
def _patient(running: rw.RunningProgram) -> Generator[None]:
    """After an interruption, give the learner the time to write a last checkpoint, which another interruption cuts."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        running.stop(_CHECKPOINT_GRACE_S)
        raise


def _shown(status: LearnerStatus, log: ProgressLog) -> LearnerStatus:
    for problem in status.problems:
        logger.warning("%s", problem)
    for scores in status.evaluations:
        log.evaluation(scores)
    log.progress(status.counters, status.metrics, status.bound, label="end" if status.done else "progress")
    return status


__all__ = ["ProcessCounts", "build_program", "drive_program"]
