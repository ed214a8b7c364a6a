"""Experiments as a whole: the same bits however they run, and what happens when their processes die."""

from __future__ import annotations

import dataclasses
import itertools
import re
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

import ropewalk as rw
from ropewalk import rl
from ropewalk.rl import other_names
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.asynchronous_actor import GROUPS_OF_REMOTE_ACTOR
from ropewalk.rl.distributed import ProcessCounts, build_program
from ropewalk.rl.environments.serial import environment_seed
from ropewalk.rl.logs.memory import MemoryLogger

pytestmark = pytest.mark.usefixtures("shared_session")

CARTPOLE = rl.Gymnasium("CartPole-v1")
SMALL = rl.Experiment(
    rl.IMPALA(unroll=8, envs=2, batch_size=2), CARTPOLE, rl.MLP((16,)), steps=1_200, seed=3, digest_every=10, groups=4
)
RECURRENT = dataclasses.replace(SMALL, network=rl.LSTM(rl.MLP((8,)), 8), steps=1_000)
OFF_POLICY = rl.Experiment(
    rl.SAC(optimizer=rl.TorchAdam(3e-3), batch_size=64, learning_starts=64),
    rl.Gymnasium("Pendulum-v1"),
    rl.MLP((16,)),
    steps=150,
    seed=2,
    digest_every=10,
    groups=2,
)


_references: dict[str, rl.ExperimentResult] = {}


def reference(experiment: rl.Experiment, lag: int = 0) -> rl.ExperimentResult:
    """Of one process; each is trained once."""
    settings = f"{experiment!r} {lag}"
    if settings not in _references:
        _references[settings] = experiment.run(lag=lag, log="silent")
    return _references[settings]


def run_with_deaths(
    experiment: rl.Experiment, actors: int, deaths: Callable[[Any, int], None], *, mode: Any = "lockstep", lag: int = 0
) -> tuple[Any, int]:
    """The outcome of a program, during which `deaths(running, number)` is called after every few updates."""
    assembly = Assembly(experiment, experiment.groups or actors, lag)
    program = build_program(assembly, ProcessCounts(actors, mode), hold=True)
    num_deaths = 0
    with program.launch() as running:
        learner = running.client("learner", on_lost="retry")
        next_death = 5
        while not (status := learner.status()).done:
            if status.counters.updates >= next_death:
                deaths(running, num_deaths)
                num_deaths += 1
                next_death = status.counters.updates + 10
            threading.Event().wait(0.02)
        return learner.outcome(), num_deaths


@pytest.mark.parametrize(
    ("experiment", "actors", "lag"),
    [
        (SMALL, 1, 1),
        (SMALL, 3, 0),
        (OFF_POLICY, 2, 0),
        pytest.param(SMALL, 1, 0, marks=pytest.mark.soak),
        pytest.param(SMALL, 3, 1, marks=pytest.mark.soak),
    ],
)
def test_lock_step_gives_the_same_bits_with_any_number_of_actors(
    experiment: rl.Experiment, actors: int, lag: int
) -> None:
    expected = reference(experiment, lag)
    assert len(expected.digests) > 2
    result = experiment.run(actors, mode="lockstep", lag=lag, log="silent")
    assert result.digests == expected.digests
    assert result.counters == expected.counters


def test_lag_and_seed_and_groups_change_the_bits() -> None:
    digests = {
        reference(SMALL).digests[0],
        reference(SMALL, 1).digests[0],
        reference(dataclasses.replace(SMALL, steps=400, seed=4)).digests[0],
        reference(dataclasses.replace(SMALL, steps=400, groups=2)).digests[0],
    }
    assert len(digests) == 4


@pytest.mark.parametrize(
    "experiment", [SMALL, pytest.param(RECURRENT, marks=pytest.mark.soak)], ids=["feed-forward", "recurrent"]
)
def test_lock_step_gives_the_same_bits_though_actors_are_killed(experiment: rl.Experiment) -> None:
    outcome, num_deaths = run_with_deaths(experiment, 2, lambda running, number: running.kill("actors", number % 2))
    assert num_deaths >= 2
    expected = reference(experiment)
    assert outcome.digests == expected.digests
    assert outcome.counters == expected.counters, "no step is counted twice, and none is lost"


def test_lock_step_gives_the_same_bits_though_the_learner_is_killed() -> None:
    outcome, num_deaths = run_with_deaths(
        SMALL, 2, lambda running, number: running.kill("learner", 0) if number < 2 else None, lag=1
    )
    assert num_deaths >= 2
    expected = reference(SMALL, 1)
    assert outcome.digests == expected.digests
    assert outcome.counters == expected.counters


def test_an_asynchronous_run_is_repeated_from_its_record(tmp_path: Path) -> None:
    experiment = dataclasses.replace(SMALL, steps=2_000, groups=None, record=tmp_path / "decisions.jsonl")
    outcome, num_deaths = run_with_deaths(
        experiment, 2, lambda running, number: running.kill("actors", number % 2), mode="async"
    )
    assert num_deaths >= 2
    repeated = experiment.repeat(tmp_path / "decisions.jsonl", log="silent")
    assert len(repeated.digests) > 2 and repeated.digests == outcome.digests
    assert repeated.counters == outcome.counters
    other = dataclasses.replace(experiment, seed=5)
    with pytest.raises(ValueError, match=r"log of another experiment[\s\S]*seed 3[\s\S]*seed 5"):
        other.repeat(tmp_path / "decisions.jsonl", log="silent")


def test_an_asynchronous_run_goes_on_after_the_death_of_its_learner(tmp_path: Path) -> None:
    experiment = dataclasses.replace(SMALL, steps=2_000, groups=None, record=tmp_path / "decisions.jsonl")
    outcome, num_deaths = run_with_deaths(
        experiment, 2, lambda running, number: running.kill("learner", 0) if number == 1 else None, mode="async"
    )
    assert num_deaths >= 2
    assert outcome.counters.steps >= experiment.steps
    repeated = experiment.repeat(tmp_path / "decisions.jsonl", log="silent")
    assert repeated.digests == outcome.digests, "what was lost with the learner is not in the record"
    assert repeated.counters == outcome.counters


class Interrupted(BaseException):
    pass


def interrupted_after(updates: int) -> Callable[[str, Mapping[str, Any]], None]:
    def log(label: str, row: Mapping[str, Any]) -> None:
        if row["updates"] >= updates:
            raise Interrupted

    return log


@pytest.mark.parametrize(
    "experiment", [pytest.param(SMALL, marks=pytest.mark.soak), RECURRENT], ids=["feed-forward", "recurrent"]
)
def test_a_run_goes_on_from_its_checkpoint_with_the_same_bits(experiment: rl.Experiment, tmp_path: Path) -> None:
    saved = dataclasses.replace(experiment, checkpoint=tmp_path / "run", checkpoint_s=1e-9)
    with pytest.raises(Interrupted):
        saved.run(log=interrupted_after(17))
    logger = MemoryLogger()
    result = saved.run(log=logger)
    first_round = reference(experiment).timeline[0]["updates"]
    updates = logger.rows["progress"][0]["updates"]
    assert isinstance(updates, int) and isinstance(first_round, int)
    assert updates > first_round, "it went on"
    assert result.digests == reference(experiment).digests
    again = saved.run(log="silent")
    assert again.digests == result.digests and again.counters == result.counters, "nothing was left to do"


def test_a_program_goes_on_from_the_checkpoint_of_one_process(tmp_path: Path) -> None:
    saved = dataclasses.replace(SMALL, checkpoint=tmp_path / "run", checkpoint_s=1e-9)
    with pytest.raises(Interrupted):
        saved.run(log=interrupted_after(17))
    result = saved.run(2, mode="lockstep", log="silent")
    assert result.digests == reference(SMALL).digests


def test_evaluations_do_not_change_what_is_learned() -> None:
    evaluated = dataclasses.replace(SMALL, evaluation=rl.Evaluation(every_steps=300, episodes=3))
    logger = MemoryLogger()
    result = evaluated.run(log=logger)
    assert result.digests == reference(SMALL).digests
    assert [scores.steps // 300 for scores in result.evaluations] == [1, 2, 3, 4]
    assert all(len(scores.scores) == 3 for scores in result.evaluations)
    assert len(logger.rows["evaluation"]) == 4
    assert result.evaluate(4, seed=1) == result.evaluate(4, seed=1) != result.evaluate(4, seed=2)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"actors": 5, "mode": "lockstep"}, r"5 actors cannot share 4 group"),
        ({"actors": -1}, "actors must be a number of processes, 0 or more, not -1"),
        ({"evaluators": 1}, "evaluators=1 are processes of a program"),
        ({"lag": 2}, "lag is 0 or 1"),
        ({"mode": "asynchronous"}, "mode is 'lockstep', 'async', or None .* not 'asynchronous'"),
        ({"actors": 1, "mode": "lockstep", "inference": 1}, "in lock-step every actor has the weights"),
        ({"log": "loud"}, "log is .* not 'loud'"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_starts(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        SMALL.run(**options)


class Sized(gymnasium.Env[Any, Any]):
    def __init__(self, size: float = 1.0) -> None:
        self.size = size


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        ({"agent": rl.PPO}, "agent is settings of a method"),
        ({"environment": "CartPole-v1"}, "it is 'CartPole-v1'"),
        ({"environment": Sized}, "would get a seed as its argument 'size'; pass `lambda seed: Sized"),
        ({"environment": lambda: Sized()}, r"cannot be called with one argument; give it a parameter: `lambda seed"),
        (
            {"environment": partial(Sized)},
            r"is the class Sized, .* its argument 'size'; pass `lambda seed: Sized\(\.\.\.\)`",
        ),
        (
            {"environment": partial(gymnasium.make, "CartPole-v1")},
            r"would take for its argument 'max_episode_steps'; pass `lambda seed: make\(\.\.\.\)`, or call",
        ),
        ({"environment": lambda size=3: Sized(size)}, "take for its argument 'size'; pass `lambda seed: \\.\\.\\.`"),
        ({"environment": gymnasium.Env}, r"cannot be called with one argument; give it the form `lambda seed: Env\("),
        ({"network": torch.nn.Linear(4, 8)}, r"called with the spec; it is Linear\("),
        ({"network": rl.MLP}, r"network is the class MLP itself; give its settings, such as rl.MLP\(\.\.\.\)"),
        ({"network": (64, 64)}, r"it is \(64, 64\)"),
        ({"steps": 1e6}, "steps is of type float; give a whole number"),
        ({"seed": None}, "seed is of type NoneType; give a whole number"),
        ({"evaluation": 1000}, r"evaluation is of type int; give rl.Evaluation\(every_steps"),
        ({"groups": "two"}, "groups is of type str; give a whole number"),
        ({"checkpoint": 3}, "checkpoint is of type int; give a path"),
    ],
)
def test_parts_of_another_kind_are_refused_where_they_are_given(part: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        dataclasses.replace(SMALL, **part)


@pytest.mark.parametrize(
    "environment",
    [
        lambda seed=0: Sized(),
        lambda env_seed=0: Sized(),
        lambda _=None: Sized(),
        lambda rank: Sized(),
        lambda *_: Sized(),
    ],
)
def test_an_argument_that_may_be_meant_for_the_seed_gets_it(environment: Any) -> None:
    assert dataclasses.replace(SMALL, environment=environment).environment is environment


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: rl.PPO(n_steps=128), "rl.PPO has no setting 'n_steps'; write unroll"),  # pyright: ignore[reportCallIssue]
        (lambda: rl.DQN(learning_rate=1e-3), "write optimizer=rl.TorchAdam"),  # pyright: ignore[reportCallIssue]
        (lambda: rl.SAC(replaysize=10), "did you mean 'replay_size'"),  # pyright: ignore[reportCallIssue]
        (lambda: rl.Experiment(rl.PPO(), env=Sized), "write environment"),  # pyright: ignore[reportCallIssue]
        (lambda: rl.PPO(envs="8"), "^rl.PPO: envs is of type str; give a whole number$"),  # type: ignore[arg-type]
        (lambda: rl.SAC(unroll=4.0), "unroll is of type float; give a whole number$"),  # type: ignore[arg-type]
        (lambda: rl.A2C(discount=None), "discount is of type NoneType; give a number$"),  # type: ignore[arg-type]
        (lambda: rl.A2C(batch_size="all"), "batch_size is of type str; give a whole number, or None$"),  # type: ignore[arg-type]
        (lambda: rl.DQN(double="no"), "double is of type str; give True or False$"),  # type: ignore[arg-type]
        (lambda: rl.DQN(epsilon=0.1), r"epsilon is of type float; give rl.LinearSchedule\("),  # type: ignore[arg-type]
        (lambda: rl.DQN(target=500), r"^rl.DQN: target is of type int; give rl.TargetCopy\(updates\), or"),  # type: ignore[arg-type]
        (lambda: rl.R2D2(target=500), r"^rl.R2D2: target is of type int; give rl.TargetCopy"),  # type: ignore[arg-type]
        (lambda: rl.PPO(clip=lambda left: 0.2 * left), r"clip is of type function; give a number, or rl.Lin"),  # type: ignore[arg-type]
        (lambda: rl.Evaluation(eval_freq=9), r"rl.Evaluation has no setting 'eval_freq'; write every_steps"),  # pyright: ignore[reportCallIssue]
        (lambda: rl.MLP((8,), activation_fn="relu"), "rl.MLP has no setting 'activation_fn'; write activation"),  # pyright: ignore[reportCallIssue]
        (lambda: rl.MLP(64), r"hidden is of type int; give the number of units of each layer, such as \(64, 64\)"),  # type: ignore[arg-type]
        (lambda: rl.MLP((8,), torch.nn.ReLU), "activation is of type type; give the name of a function"),  # type: ignore[arg-type]
        (lambda: rl.TD3(optimizer=1e-3), r"optimizer is of type float; give rl.TorchAdam\("),  # type: ignore[arg-type]
    ],
)
def test_settings_of_other_libraries_are_named_in_ours(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        make()


def test_every_name_in_ours_is_a_setting_that_exists() -> None:
    kinds = (rl.PPO, rl.IMPALA, rl.DQN, rl.SAC, rl.TD3, rl.Experiment, rl.Evaluation, rl.MLP)
    settings = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    first = {re.split(r"\W", words)[0] for words in other_names._HERE.values()}
    assert first - settings == {"the", "log"}, "the network of an experiment, and log= of run()"


def test_a_batch_of_more_blocks_than_a_round_has_is_refused() -> None:
    experiment = dataclasses.replace(SMALL, agent=rl.PPO(batch_size=64), groups=2)
    with pytest.raises(ValueError, match=r"batch_size=64 is a number of blocks.*each of 2 group.*minibatches="):
        experiment.run(log="silent")


def test_a_network_may_be_a_class_that_is_called_with_the_spec() -> None:
    class Network(torch.nn.Linear):
        def __init__(self, spec: rl.EnvironmentSpec) -> None:
            super().__init__(spec.observation.shape[0], 8)  # type: ignore[union-attr]

    dataclasses.replace(SMALL, network=Network, steps=16).run(log="silent")


@pytest.mark.parametrize("name", ["actors", "inference", "evaluators", "learners"])
def test_a_number_of_processes_is_a_whole_number(name: str) -> None:
    numbers: dict[str, Any] = {"actors": 1, "mode": "async", name: "2"}
    with pytest.raises(TypeError, match=f"^{name} is of type str; give a number of processes"):
        SMALL.run(**numbers)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed must be a whole number, 0 or more, not -1"):
        dataclasses.replace(SMALL, seed=-1)


def test_a_run_that_has_not_learned_says_why(caplog: pytest.LogCaptureFixture) -> None:
    agent = rl.DQN(unroll=8, envs=2)
    result = dataclasses.replace(SMALL, agent=agent, steps=20, groups=1).run(log="silent")
    assert result.counters.updates == 0
    (told,) = [record.getMessage() for record in caplog.records]
    assert "without an update, so its policy has not learned: DQN collects learning_starts=1000 items before" in told
    caplog.clear()
    dataclasses.replace(SMALL, steps=20).run(log="silent")
    assert not caplog.records


def test_synchronous_agents_refuse_to_run_asynchronously() -> None:
    with pytest.raises(ValueError, match="A2C learns from the weights that its actors act with"):
        dataclasses.replace(SMALL, agent=rl.A2C()).run(2, mode="async")


def test_an_actor_that_fails_for_good_ends_the_program_with_its_error() -> None:
    experiment = dataclasses.replace(SMALL, environment=failing_environment)
    with pytest.raises(rw.ProgramFailed) as raised:
        experiment.run(2, mode="lockstep", log="silent")
    assert "the motor burned" in "".join(str(error) for error in causes(raised.value))


def test_one_group_that_fails_ends_an_actor_with_several() -> None:
    experiment = dataclasses.replace(SMALL, environment=failing_second_group, groups=None, steps=10_000_000)
    program = build_program(
        Assembly(experiment, GROUPS_OF_REMOTE_ACTOR, 0), ProcessCounts(1, "async", inference=1), hold=True
    )
    restarts, deadline = 0, time.monotonic() + 120
    with program.launch() as running:
        while not restarts and time.monotonic() < deadline:
            threading.Event().wait(0.1)
            (restarts,) = (node.restarts for node in running.status().nodes if node.name == "actors")
    assert restarts, "an actor with fewer environments would not be noticed"


def causes(error: BaseException | None) -> list[BaseException]:
    return list(itertools.takewhile(bool, _chain(error)))


def _chain(error: BaseException | None) -> Any:
    while error is not None:
        yield error
        error = error.__cause__


def failing_second_group(seed: int) -> Any:
    lives, envs = range(20), range(SMALL.agent.envs)
    of_second_group = [environment_seed(SMALL.seed, 1, env, life) for life in lives for env in envs]
    return failing_environment(seed) if seed in of_second_group else CARTPOLE(seed)


def failing_environment(seed: int) -> Any:
    environment = CARTPOLE(seed)
    step = environment.unwrapped.step

    def fails(action: Any) -> Any:
        step(action)
        raise RuntimeError("the motor burned")

    environment.unwrapped.step = fails
    return environment


@pytest.mark.parametrize(
    "network",
    [rl.MLP((8,)), pytest.param(rl.LSTM(rl.MLP((8,)), 8), marks=pytest.mark.soak)],
    ids=["feed-forward", "recurrent"],
)
def test_actors_without_a_network_train_by_an_inference_server_that_is_killed(network: Any) -> None:
    experiment = dataclasses.replace(SMALL, network=network, groups=None, steps=1_000)
    assembly = Assembly(experiment, 2 * GROUPS_OF_REMOTE_ACTOR, 0)
    program = build_program(assembly, ProcessCounts(2, "async", inference=1), hold=True)
    killed = False
    with program.launch() as running:
        learner = running.client("learner", on_lost="retry")
        while not (status := learner.status()).done:
            if status.counters.updates >= 5 and not killed:
                killed = True
                running.kill("inference", 0)
            threading.Event().wait(0.02)
        outcome = learner.outcome()
        served = running.client("inference", on_lost="retry").served()
        restarts = {node.name: node.restarts for node in running.status().nodes}
    assert killed and outcome.counters.steps >= 1_000
    assert served["rows"] > 100 and served["rows"] > served["batches"]
    assert restarts["inference"] == 1 and restarts["actors"] == 0, "actors waited for it"


@pytest.mark.parametrize(
    "agent", [rl.PPO(unroll=16, envs=2), rl.PPO(unroll=16, envs=2, clip=rl.LinearSchedule(0.2, 0))]
)
def test_the_last_round_is_learned_from_though_schedules_end_at_zero(agent: rl.PPO) -> None:
    """Schedules once had the progress after the round: an experiment of one round changed no weight."""
    experiment = rl.Experiment(agent, CARTPOLE, rl.MLP((8,)), steps=20, seed=1)
    result = experiment.run(log="silent")
    assert result.counters.rounds == 1
    before = Assembly(experiment, 1).round_learner(result.assembly.spec()).learner.variables()
    assert all((array != before[name]).any() for name, array in result.variables.arrays.items())
