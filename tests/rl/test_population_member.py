from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import ropewalk as rw
from ropewalk import rl
from ropewalk.population import PBT, LogUniform, evaluate
from ropewalk.population.algorithms.pbt_member import PBTMember
from ropewalk.population.trial import Trial
from ropewalk.rl.agents.dqn import DQN
from ropewalk.rl.learner_updates import digest_of
from ropewalk.rl.learners.optimizers import TorchAdam
from ropewalk.rl.population_member import ExperimentMember, with_hyperparameters

CARTPOLE = rl.Gymnasium("CartPole-v1")
pytestmark = pytest.mark.usefixtures("shared_session")

IMPALA = rl.Experiment(
    rl.IMPALA(unroll=8, envs=2, optimizer=TorchAdam(2e-3)), CARTPOLE, rl.MLP((16,)), steps=1_000, groups=2
)
REPLAYED = rl.Experiment(DQN(unroll=8, envs=2, learning_starts=32, batch_size=8), CARTPOLE, rl.MLP((16,)), steps=1_000)


def new_member(interval: int = 100, **hyperparameters: Any) -> PBTMember:
    return PBTMember(0, 0, interval, hyperparameters, None)


def digest(train: ExperimentMember, member: PBTMember) -> str:
    assembly = train._assembly(member.hyperparameters, 0)
    learner = assembly.round_learner(assembly.spec()).learner
    learner.load_state_dict(member.state["learner"])
    return digest_of(learner.variables())


@pytest.mark.parametrize("experiment", [IMPALA, REPLAYED], ids=["IMPALA", "DQN"])
def test_an_interval_goes_on_from_the_state_and_the_counts_of_the_one_before(experiment: rl.Experiment) -> None:
    train, member = ExperimentMember(experiment, episodes=2), new_member()
    first = train(member, Trial(1))
    assert 100 <= first.steps < 140 and first.fitness > 0
    after_first, counters = digest(train, member), member.state["counters"]
    second = train(member, Trial(2))
    assert member.state["counters"]["steps"] == first.steps + second.steps
    assert member.state["counters"]["updates"] > counters["updates"]
    assert digest(train, member) != after_first
    assert train.policy(member)


def test_an_interval_has_the_same_bits_wherever_it_is_trained() -> None:
    train = ExperimentMember(IMPALA, episodes=2)

    def trained(*seeds: int) -> tuple[str, float]:
        member = new_member()
        scores = [train(member, Trial(seed)).fitness for seed in seeds]
        return digest(train, member), scores[-1]

    assert trained(1, 2) == trained(1, 2)
    assert trained(1, 2)[0] != trained(1, 3)[0]


def test_a_test_scores_the_member_and_does_not_train_it() -> None:
    train, member = ExperimentMember(IMPALA, episodes=2), new_member()
    train(member, Trial(1))
    before = digest(train, member)
    outcome = train(member, Trial(2, is_test=True))
    assert outcome.steps == 0 and outcome.fitness > 0 and digest(train, member) == before


def test_hyperparameters_reach_the_agent_also_when_a_state_is_continued() -> None:
    train, member = ExperimentMember(IMPALA, episodes=1), new_member()
    train(member, Trial(1))
    still = PBTMember(0, 100, 100, {"optimizer.learning_rate": 0.0}, None)
    still.state = member.state
    before = digest(train, member)
    train(still, Trial(2))
    assert digest(train, still) == before  # nothing can change at a learning rate of 0


def test_a_population_trains_and_copies() -> None:
    train = ExperimentMember(dataclasses.replace(IMPALA, steps=300), episodes=2)
    algorithm = PBT(
        {"optimizer.learning_rate": LogUniform(1e-4, 1e-1)},
        population=4,
        interval=100,
        steps=300,
        synchronous=True,
        seed=1,
    )
    with rw.Pool(2) as pool:
        run = evaluate(algorithm, train, pool)
    assert run.best.state["counters"]["steps"] >= 300
    assert any(mutation.reason == "exploit" for mutation in algorithm.mutations)
    assert train.policy(run.best)


def test_names_that_are_no_settings_are_refused_with_the_near_one() -> None:
    with pytest.raises(ValueError, match=r"no setting 'optimiser'.*did you mean 'optimizer'\?"):
        with_hyperparameters(IMPALA.agent, {"optimiser.learning_rate": 1e-3})
    with pytest.raises(ValueError, match="TorchAdam has no setting 'rate'"):
        with_hyperparameters(IMPALA.agent, {"optimizer.rate": 1e-3})


def test_settings_at_several_depths_are_changed_at_once() -> None:
    agent = with_hyperparameters(IMPALA.agent, {"discount": 0.5, "optimizer.learning_rate": 0.1, "optimizer.eps": 0.2})
    assert agent == dataclasses.replace(IMPALA.agent, discount=0.5, optimizer=TorchAdam(0.1, eps=0.2))  # pyright: ignore


def test_a_member_without_a_state_has_no_policy() -> None:
    with pytest.raises(ValueError, match="was not trained yet"):
        ExperimentMember(IMPALA).policy(new_member())
