"""`Experiment`: an agent, an environment and a budget; runs in one process, or as a program on any engine."""

from __future__ import annotations

import dataclasses
import logging
import numbers
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from ropewalk.argument_kinds import check_kind, check_number
from ropewalk.rl.actors.evaluator import MAX_STEPS
from ropewalk.rl.agents.agent import Agent, NetworkFactory
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.asynchronous_actor import GROUPS_OF_REMOTE_ACTOR
from ropewalk.rl.distributed import ProcessCounts, build_program, drive_program
from ropewalk.rl.environments.environment import EnvironmentFactory
from ropewalk.rl.environments.mistakes import check_takes_a_seed
from ropewalk.rl.in_process import run_in_process
from ropewalk.rl.logs.logger import Log, as_logger
from ropewalk.rl.observing import observe, with_rows
from ropewalk.rl.other_names import refuse_unknown
from ropewalk.rl.repeating import repeat
from ropewalk.rl.result import ExperimentResult
from ropewalk.tracking.observed_run import Track
from ropewalk.user_frames import user_frames_only

if TYPE_CHECKING:
    from ropewalk.program.program import Program

_logger = logging.getLogger(__name__)

RunMode: TypeAlias = Literal["lockstep", "async"]


@dataclass(frozen=True)
class Evaluation:
    """When and how the policy is evaluated, without exploration, beside the training.

    Args:
        every_steps: environment steps between evaluations. In a program nobody waits for an evaluation: if steps go by
            faster than evaluators can play, they leave some out, and go on with the newest weights.
        episodes: number of episodes of an evaluation.
        stop_at: the experiment ends, before its steps are done, once the mean score of an evaluation is at least this;
            None: it does not. In a program the steps until then depend on when evaluators find the time.
        max_steps: an episode that has not ended after this number of steps is cut, and counts with its score so far;
            see `evaluate_policy`.

    Raises:
        ValueError: a number is below 1.
        TypeError: a number is no whole one.
    """

    every_steps: int
    episodes: int = 20
    stop_at: float | None = None
    max_steps: int = MAX_STEPS

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        """Refuse unknown settings, with the names of other libraries in ours."""
        refuse_unknown("rl.Evaluation", settings, (field.name for field in dataclasses.fields(cls)))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name in ("every_steps", "episodes", "max_steps"):
            check_number(name, getattr(self, name), numbers.Integral, "a whole number", least=1, required=True)


@dataclass(frozen=True)
class Experiment:
    """What is trained, on what, and for how long.

    Example:
        >>> from ropewalk import rl
        >>> experiment = rl.Experiment(rl.PPO(unroll=32, envs=4), rl.Gymnasium("CartPole-v1"), rl.MLP((16,)), steps=512)
        >>> result = experiment.run(log="silent")
        >>> result.counters.steps >= 512, len(result.evaluate(episodes=3))
        (True, 3)

    Args:
        agent: the method and its settings, such as `rl.PPO()`.
        environment: makes one environment from a seed: `rl.Gymnasium("CartPole-v1")`, or any function that returns a
            `gymnasium.Env`, a `gymnasium.vector.VectorEnv` or a `VectorEnvironment`.
        network: makes the network from the environment's spec, such as `rl.MLP((64, 64))`; None: the agent's own.
        steps: environment steps after which training ends.
        seed: everything random follows from it.
        groups: groups of `agent.envs` environments in lock-step. Results depend on it, and not on the number of actors
            that share them. None: one for each actor.
        evaluation: when the policy is evaluated; None: never.
        checkpoint: a folder for checkpoints; a run continues from the newest one in it. None: nothing is kept.
        checkpoint_s: seconds between checkpoints.
        max_lag: in an asynchronous run, a block is dropped and counted (`Counters.stale_steps`) if, when it arrives,
            its weights are more than this number of updates behind the newest ones: its steps are not learned from.
            Blocks that arrive in time may still wait for their turn, which the agent's `max_policy_lag` or the size of
            its table limits. In lock-step `lag` is the limit. None: blocks of any age are taken.
        record: a file for the decisions of an asynchronous run, from which `repeat` repeats it; None: no file.
        device: where the learner computes, such as "cuda".
        digest_every: updates between digests of the weights, by which runs are compared; 0 takes none.

    Raises:
        TypeError: a setting is of the wrong type, or does not exist.
        ValueError: a number is out of its range.
    """

    agent: Agent
    environment: EnvironmentFactory
    network: NetworkFactory | None = None
    steps: int = 100_000
    seed: int = 0
    groups: int | None = None
    evaluation: Evaluation | None = None
    checkpoint: Path | str | None = None
    checkpoint_s: float = 60.0
    max_lag: int | None = None
    record: Path | str | None = None
    device: str = "cpu"
    digest_every: int = 0

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        """Refuse unknown settings, with the names that those of other libraries have here."""
        refuse_unknown("rl.Experiment", settings, (field.name for field in dataclasses.fields(cls)))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self._check_parts()
        check_number("seed", self.seed, numbers.Integral, "a whole number", least=0, required=True)
        check_number("steps", self.steps, numbers.Integral, "a whole number", least=1, required=True)
        check_number("groups", self.groups, numbers.Integral, "a whole number", least=1)
        what = "a whole number of updates"
        check_number("max_lag", self.max_lag, numbers.Integral, what, least=0)
        check_number("digest_every", self.digest_every, numbers.Integral, what, least=0, required=True)
        check_number("checkpoint_s", self.checkpoint_s, numbers.Real, "a number of seconds", above=0, required=True)

    def _check_parts(self) -> None:
        """Refuse what is of another kind, before a message from the depths does."""
        if not isinstance(self.agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"agent is settings of a method, such as rl.PPO(), not {self.agent!r}")
        check_takes_a_seed(self.environment)
        is_made = hasattr(self.network, "state_dict") and not isinstance(self.network, type)
        network: Any = self.network
        if isinstance(network, type) and dataclasses.is_dataclass(network):
            name = network.__name__
            raise TypeError(f"network is the class {name} itself; give its settings, such as rl.{name}(...)")
        if self.network is not None and (not callable(self.network) or is_made):
            raise TypeError(
                "network makes a network from the environment's spec: rl.MLP((64, 64)), or a function or a class that "
                f"is called with the spec; it is {self.network!r}"
            )
        check_kind("evaluation", self.evaluation, Evaluation, "rl.Evaluation(every_steps=10_000)")
        for name in ("checkpoint", "record"):
            check_kind(name, getattr(self, name), str | os.PathLike, "a path")

    @user_frames_only
    def run(
        self,
        actors: int = 0,
        *,
        mode: RunMode | None = None,
        lag: int = 0,
        inference: int = 0,
        evaluators: int | None = None,
        learners: int = 1,
        engine: str | None = None,
        log: Log = "terminal",
        track: Track = False,
    ) -> ExperimentResult:
        """Train to the end, and return the result.

        Ctrl-C and SIGTERM end it, after a last checkpoint if the experiment has a folder for them.

        Args:
            actors: processes that collect experience; 0: everything happens in this process, in lock-step.
            mode: "lockstep": results have the same bits for any number of actors, deaths and hosts; "async": actors
                never wait for each other. None: what suits the agent.
            lag: in lock-step, 1 lets actors collect a round while the learner learns from the last one.
            inference: processes that choose actions for all actors, which then hold no network (SEED RL).
            evaluators: processes that evaluate the newest weights, in turn; None: one if there is an `evaluation`.
                Without an `evaluation` they evaluate all the time.
            learners: processes that learn, each from a share of the actors with a replay of its own; they average their
                gradients, so an update is worth `learners` batches, and have equal weights. Only with "async".
            engine: where the processes run, such as "slurm"; None: as the settings say.
            log: where progress goes: "terminal", "silent", a `Logger`, or a list of these.
            track: True, or the name of a project: the settings, the rows of the log, deaths and the end are kept as a
                run: the current run of this process, or a new one; see `ropewalk.tracking`.

        Raises:
            ValueError: these settings do not fit together; raised before anything starts.
            ProgramFailed: a node failed for good.
            NotFinite: experience, a loss or a gradient is NaN or infinite.
            LimiterDeadlock, LimiterStuck: the limiters of replay allow neither inserting nor sampling.
        """
        assembly = self._assembly(actors, mode, lag, inference)
        logger = as_logger(log)
        if not actors and (inference or evaluators or learners != 1):
            raise ValueError(
                f"inference={inference}, learners={learners} and evaluators={evaluators or 0} are processes of a "
                "program, and actors=0 runs everything in this one; say actors=1 or more"
            )
        processes = self._processes(actors, mode, inference, evaluators, learners)
        with observe(track, self, actors) as watched:
            logger = with_rows(logger, watched)
            if not actors:
                result = run_in_process(assembly, logger, watched.run.id if watched.run else "")
            else:
                result = drive_program(assembly, processes, logger, engine=engine, track=watched)
        self._tell_if_untrained(result)
        return result

    def _tell_if_untrained(self, result: ExperimentResult) -> None:
        """Say so if nothing was learned: the line of the end looks as that of any other run."""
        if result.counters.updates:
            return
        begins = getattr(self.agent, "learning_starts", None)
        why = "" if begins is None else f": {type(self.agent).__name__} collects learning_starts={begins} items before"
        _logger.warning(
            "the experiment has ended after %d of %d steps without an update, so its policy has not learned%s",
            result.counters.steps,
            self.steps,
            why,
        )

    @user_frames_only
    def repeat(self, record: Path | str, *, log: Log = "terminal") -> ExperimentResult:
        """Repeat an asynchronous run in this process from the record of its decisions, bit for bit.

        Args:
            record: the file that `Experiment.record` named.
            log: as in `run`.

        Raises:
            ValueError: it is the record of another experiment, or damaged.
        """
        return repeat(self, record, as_logger(log))

    def program(
        self,
        actors: int,
        *,
        mode: RunMode | None = None,
        lag: int = 0,
        inference: int = 0,
        evaluators: int | None = None,
        learners: int = 1,
    ) -> Program:
        """Return the program that `run` would launch, to be extended: nodes "learner", "actors", and so on.

        It ends by itself after `steps`, and what was learned is in `checkpoint`.

        Raises:
            ValueError: as in `run`; or there is no `checkpoint`, so that the result would be lost.
        """
        if self.checkpoint is None:
            raise ValueError(
                "the result of a program that ends by itself would be lost; give the experiment a checkpoint"
            )
        assembly = self._assembly(actors, mode, lag, inference)
        return build_program(assembly, self._processes(actors, mode, inference, evaluators, learners))

    def in_words(self, *, with_steps: bool = True) -> str:
        """Return what is trained, on what, with which seed: equal for experiments that compute the same.

        Args:
            with_steps: and for how long.
        """
        steps = f" {self.steps} steps," if with_steps else ""
        words = f"{self.agent} on {self.environment}, network {self.network},{steps} seed {self.seed}"
        return re.sub(r" at 0x[0-9a-f]+", "", words)

    def _mode(self, mode: RunMode | None) -> RunMode:
        return mode or ("lockstep" if self.agent.synchronous else "async")

    def _processes(
        self, actors: int, mode: RunMode | None, inference: int, evaluators: int | None, learners: int
    ) -> ProcessCounts:
        check_number("evaluators", evaluators, numbers.Integral, "a number of processes", least=0)
        check_number("learners", learners, numbers.Integral, "a number of processes", required=True)
        if evaluators is None:
            evaluators = int(actors > 0 and self.evaluation is not None)
        if learners > 1 and self.record is not None:
            raise ValueError(
                f"a run with learners={learners} cannot be repeated, as each of them decides by itself what it learns "
                "from; leave out record or learners"
            )
        return ProcessCounts(actors, self._mode(mode), inference=inference, evaluators=evaluators, learners=learners)

    def _assembly(self, actors: int, mode: RunMode | None, lag: int, inference: int) -> Assembly:
        check_number("actors", actors, numbers.Integral, "a number of processes", least=0, required=True)
        check_number("inference", inference, numbers.Integral, "a number of processes", least=0, required=True)
        if mode not in (None, "lockstep", "async"):
            raise ValueError(f"mode is 'lockstep', 'async', or None for what suits the agent, not {mode!r}")
        if mode == "async" and self.agent.synchronous:
            raise ValueError(
                f"{type(self.agent).__name__} learns from the weights that its actors act with, so it always runs in "
                'lock-step; leave out mode="async", or use an agent that corrects for the difference, such as rl.APPO'
            )
        if lag not in (0, 1):
            raise ValueError(f"lag is 0 or 1 rounds, not {lag}")
        if lag and self.agent.synchronous:
            raise ValueError(
                f"{type(self.agent).__name__} needs the newest weights in every round; leave out lag={lag}"
            )
        if inference and self.record is not None:
            raise ValueError(
                "a run with inference servers cannot be repeated, as weights change within blocks; leave out record or "
                "inference"
            )
        if actors and self._mode(mode) == "async":
            return Assembly(self, actors * (GROUPS_OF_REMOTE_ACTOR if inference else 1), lag)
        groups = self.groups or max(actors, 1)
        if actors > groups:
            raise ValueError(
                f"{actors} actors cannot share {groups} group(s) of environments; say groups={actors} or more in the "
                "experiment, or use fewer actors"
            )
        if self.agent.synchronous and self.agent.items_of_batch(groups) > groups:
            raise ValueError(
                f"batch_size={self.agent.batch_size} is a number of blocks, and a round of "
                f"{type(self.agent).__name__} has one from each of {groups} group(s); leave it out. The batch size of "
                "other libraries is a number of steps, which minibatches= says here as a number of parts"
            )
        return Assembly(self, groups, lag)


__all__ = ["Evaluation", "Experiment", "RunMode"]
