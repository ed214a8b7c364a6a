"""`ExperimentMember`: trains an experiment in intervals, as a member of population based training.

    train = rl.ExperimentMember(rl.Experiment(rl.PPO(), rl.Gymnasium("CartPole-v1"), rl.MLP((64, 64)), steps=100_000))
    algorithm = PBT({"optimizer.learning_rate": LogUniform(1e-4, 1e-2)}, interval=10_000, steps=100_000)
    with rw.Pool(8) as pool:
        run = evaluate(algorithm, train, pool, mode="steady")
    policy = train.policy(run.best)

The state of a member is that of its learner, with the counters. Replay and environments are left behind: an interval
begins with new episodes and with empty tables, and agents with replay collect `learning_starts` items, by the trained
policy, before they learn on. In exchange a state is small, and has nothing of the host that trained it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np

from ropewalk.near_names import instead_of
from ropewalk.population.algorithms.pbt_member import PBTMember
from ropewalk.population.outcome import Outcome
from ropewalk.population.trial import Trial
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.experiment import Experiment
from ropewalk.rl.policies.policy import Policy
from ropewalk.rl.round_learner import RoundLearner
from ropewalk.rl.seeds import derived_seed
from ropewalk.rl.torch_threads import one_torch_thread

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class ExperimentMember:
    """The training function of `ropewalk.population.PBT`; a step is a step of the environment.

    Hyperparameters are settings of the agent by name, such as "discount"; "optimizer.learning_rate" is that of the
    optimizer, if it is one of `ropewalk.rl.learners.optimizers`. Those of an optimizer other than its learning rate
    stay as they were when the member began.

    The score of an interval is the mean of episodes without exploration. Everything random follows from the trial's
    seed, so a synchronous run has the same result on any workers.

    Args:
        experiment: what is trained. Its steps are those of a whole member, for schedules; seed, checkpoint, evaluation
            and record are not used.
        episodes: number of episodes of a score.
    """

    experiment: Experiment
    episodes: int = 10

    def __post_init__(self) -> None:
        """Refuse a score of no episodes."""
        if self.episodes < 1:
            raise ValueError(f"episodes={self.episodes}: a score is the mean of at least one episode")

    def __call__(self, member: PBTMember, trial: Trial) -> Outcome:
        """Train the member for its interval, in this process, and return its score; a test only scores it.

        Raises:
            ValueError: a hyperparameter is not a setting of the agent, or the agent does not allow its value.
        """
        assembly = self._assembly(member.hyperparameters, trial.seed)
        with one_torch_thread():
            rounds = assembly.round_learner(assembly.spec())
            _load(rounds, member.state)
            before = rounds.counters.steps
            if not trial.is_test:
                _train(assembly, rounds, before + member.interval)
                member.state = {"learner": rounds.learner.state_dict(), "counters": rounds.counters.state_dict()}
            score = self._score(assembly, rounds, trial.seed)
        values = {} if rounds.counters.score is None else {"training_score": rounds.counters.score}
        return Outcome(score, steps=rounds.counters.steps - before, values=values)

    def policy(self, member: PBTMember) -> Policy:
        """Return the policy of a member, such as `run.best`.

        Raises:
            ValueError: the member was not trained yet.
        """
        if member.state is None:
            raise ValueError(f"{member} was not trained yet, so it has no policy")
        assembly = self._assembly(member.hyperparameters, 0)
        rounds = assembly.round_learner(assembly.spec())
        _load(rounds, member.state)
        policy = assembly.policy(assembly.spec(), 0)
        policy.load(rounds.variables())
        return policy

    def _assembly(self, hyperparameters: Mapping[str, Any], seed: int) -> Assembly:
        agent = with_hyperparameters(self.experiment.agent, hyperparameters)
        return Assembly(replace(self.experiment, agent=agent, seed=seed), self.experiment.groups or 1)

    def _score(self, assembly: Assembly, rounds: RoundLearner, seed: int) -> float:
        policy = assembly.policy(assembly.spec(), 0)
        policy.load(rounds.variables())
        return float(np.mean(assembly.evaluator().scores(policy, self.episodes, seed=derived_seed(seed, "score"))))


def _load(rounds: RoundLearner, state: Mapping[str, Any] | None) -> None:
    """Go on from the state of a member; None is a new one."""
    if state is not None:
        rounds.learner.load_state_dict(state["learner"])
        rounds.counters.load_state_dict(state["counters"])


def _train(assembly: Assembly, rounds: RoundLearner, steps: int) -> None:
    """Collect and learn, round after round, until that number of steps was done."""
    spec, unroll = assembly.spec(), assembly.experiment.agent.unroll
    with contextlib.ExitStack() as stack:
        collectors = [
            stack.enter_context(contextlib.closing(assembly.collector(assembly.policy(spec, group), group)))
            for group in range(assembly.groups)
        ]
        while rounds.counters.steps < steps:
            for collector in collectors:
                collector.load(rounds.variables())
            rounds.learn([collector.collect(unroll) for collector in collectors])


def with_hyperparameters(settings: Settings, hyperparameters: Mapping[str, Any]) -> Settings:
    """Return settings with other values.

    Args:
        settings: a dataclass.
        hyperparameters: values by the names of its fields; "optimizer.learning_rate" is a field of a field.

    Raises:
        ValueError: there is no such field.
    """
    inner: dict[str, dict[str, Any]] = {}
    own: dict[str, Any] = {}
    known = [field.name for field in dataclasses.fields(settings)] if dataclasses.is_dataclass(settings) else []
    for name, value in hyperparameters.items():
        first, _, rest = name.partition(".")
        if first not in known:
            raise ValueError(
                f"{type(settings).__name__} has no setting {first!r}, which the hyperparameter {name!r} names"
                f"{instead_of(first, known, 'it has')}"
            )
        if rest:
            inner.setdefault(first, {})[rest] = value
        else:
            own[first] = value
    nested = {name: with_hyperparameters(getattr(settings, name), values) for name, values in inner.items()}
    return cast("Settings", replace(cast("Any", settings), **own, **nested))


__all__ = ["ExperimentMember", "with_hyperparameters"]
