"""Several learners in threads of this process, against one learner that has all their batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ropewalk import rl
from ropewalk.errors import NotFinite
from ropewalk.exchange import ThreadGroup, run_members
from ropewalk.rl.environments.spec import ArraySpec, DiscreteAction, EnvironmentSpec
from ropewalk.rl.learners.data_parallel import LearnerGroup, RankReport
from ropewalk.rl.learners.learner import Learner
from ropewalk.rl.replay.batch import Batch
from tests.rl.agents import batches, experience, transition_batches

TRANSITIONS = EnvironmentSpec(ArraySpec((4,)), DiscreteAction(3))
NETWORK = rl.MLP((16,))


def impala(**settings: object) -> Learner:
    agent = rl.IMPALA(max_grad_norm=0.1, **settings)  # type: ignore[arg-type]
    return agent.make_learner(experience.DISCRETE, NETWORK, seed=1)


def dqn() -> Learner:
    agent = rl.DQN(max_grad_norm=0.1, target=rl.TargetCopy(2))
    return agent.make_learner(TRANSITIONS, NETWORK, seed=1)


def td3() -> Learner:
    agent = rl.TD3(target_noise=0.0, max_grad_norm=0.1)
    return agent.make_learner(transition_batches.SPEC, NETWORK, seed=1)


def blocks(seed: int) -> Batch:
    """Four blocks without ends of episodes, so that every half has the same number of steps."""
    batch = experience.random_batch(experience.DISCRETE, seed, blocks=4)
    columns = dict(batch.columns)
    for name in ("terminated", "truncated", "first"):
        columns[name] = np.zeros_like(columns[name])
    columns["mask"] = np.ones_like(columns["mask"])
    return Batch(columns, batch.info)


def transitions(seed: int) -> Batch:
    return batches.transitions(seed)


def continuous_transitions(seed: int) -> Batch:
    return transition_batches.random_batch(seed=seed)


def train_together(
    make: Callable[[], Learner], parts: Callable[[int], list[Batch]], updates: int
) -> list[tuple[dict[str, Any], Learner]]:
    """The variables of two learners after updates on their parts of each batch."""

    learners = [make(), make()]  # here, as weights are drawn from a generator that threads share

    def body(group: ThreadGroup) -> tuple[dict[str, Any], Learner]:
        learner = learners[group.rank]
        LearnerGroup(group).join(learner)
        for number in range(updates):
            learner.update(parts(number)[group.rank], 0.0)
        return learner.variables(), learner

    return run_members(ThreadGroup.make(2), body)


@pytest.mark.parametrize(
    ("make", "batch_of"),
    [(impala, blocks), (dqn, transitions), (td3, continuous_transitions)],
    ids=["impala", "dqn", "td3"],
)
def test_two_learners_learn_what_one_does_from_both_batches(
    make: Callable[[], Learner], batch_of: Callable[[int], Batch]
) -> None:
    def halves(number: int) -> list[Batch]:
        batch = batch_of(number)
        return [batch.take(half) for half in np.split(np.arange(len(batch)), 2)]

    (first, _), (second, _) = train_together(make, halves, 4)
    alone = make()
    for number in range(4):
        alone.update(batch_of(number), 0.0)
    before: dict[str, Any] = make().variables()
    expected: dict[str, Any] = alone.variables()
    for name, value in expected.items():
        assert first[name].tobytes() == second[name].tobytes(), name
        np.testing.assert_allclose(first[name], value, rtol=0, atol=2e-6, err_msg=name)
    assert max(np.abs(expected[name] - before[name]).max() for name in expected) > 1e-3, "they have learned"


@pytest.mark.parametrize("rule", ["raise", "skip"])
def test_what_is_not_finite_at_one_learner_stops_the_step_of_all(rule: str) -> None:
    def parts(number: int) -> list[Batch]:
        good = blocks(number)
        bad = Batch({**good.columns, "reward": np.full_like(good.columns["reward"], np.nan)}, good.info)
        return [good, bad]

    def make() -> Learner:
        return impala(not_finite=rule)

    if rule == "raise":
        with pytest.raises(NotFinite, match="the loss is nan"):
            train_together(make, parts, 1)
        return
    before = make().variables()
    for variables, learner in train_together(make, parts, 3):
        assert all(variables[name].tobytes() == before[name].tobytes() for name in before)
        assert learner.gradient_steps()[0].num_skipped == 3


def test_all_learners_get_the_reports_of_all() -> None:
    reports = [RankReport(120, 3, 16, 7, scores=(1.5, -2.0)), RankReport(2**40, 0, 0, 7, stopping=True)]
    told = run_members(ThreadGroup.make(2), lambda group: LearnerGroup(group).tell(reports[group.rank]))
    assert told == [reports, reports]


def test_blocks_that_are_too_old_are_not_usable_and_counted_once() -> None:
    learner = impala(max_policy_lag=3)
    learner.version = 5
    batch = experience.random_batch(experience.DISCRETE, 0, blocks=3, versions=(0, 2, 5))
    assert learner.usable(batch).info.version.tolist() == [2, 5]
    assert learner.update(learner.usable(batch), 0.0).metrics["num_dropped"] == 2
    assert len(learner.usable(batch.take(np.array([0])))) == 0
    other = dqn()
    assert other.usable(transitions(0)) is not None


LSTM = rl.LSTM(rl.MLP((8,)), 8)


@pytest.mark.parametrize(
    ("agent", "network", "complaint"),
    [
        (rl.IMPALA(normalise_observations=True), NETWORK, "normalises observations by statistics"),
        (rl.IMPALA(), rl.Normalised(NETWORK), "normalises observations by statistics"),
        (rl.IMPALA(normalise_rewards=True), NETWORK, "normalises rewards by statistics"),
        (rl.APPO(target_kl=0.02), NETWORK, "APPO ends an update at target_kl=0.02"),
        (rl.APPO(minibatches=4, envs=2), LSTM, "makes minibatches=4 of the environments .* only 2 that count"),
        (rl.APPO(minibatches=2, envs=4, unroll=1), LSTM, "of the environments .* only 1 that count"),
        (rl.APPO(minibatches=4, envs=3, unroll=2), NETWORK, "makes minibatches=4 of the steps .* only 3 that count"),
        (rl.APPO(minibatches=2, envs=4, unroll=1), NETWORK, "of the steps .* only 1 that count"),
    ],
)
def test_learners_whose_weights_would_differ_are_refused(
    agent: rl.Agent, network: rl.MLP | rl.LSTM, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        agent.make_learner(experience.DISCRETE, network, seed=0).gradient_steps()


def test_other_settings_of_the_same_agents_are_accepted() -> None:
    for agent, network in (
        (rl.APPO(minibatches=4, envs=4), LSTM),
        (rl.APPO(minibatches=4, envs=2), NETWORK),
        (rl.APPO(minibatches=4, envs=4, unroll=3), NETWORK),
        (rl.APPO(minibatches=1, envs=1, unroll=1), LSTM),
    ):
        assert len(agent.make_learner(experience.DISCRETE, network, seed=0).gradient_steps()) == 1
    sac = rl.SAC().make_learner(transition_batches.SPEC, NETWORK, seed=0)
    assert len(sac.gradient_steps()) == 3


def test_a_learner_that_does_not_say_how_it_learns_is_refused() -> None:
    class Other(type(dqn())):  # type: ignore[misc]
        gradient_steps = Learner.gradient_steps

    with pytest.raises(ValueError, match="Other does not say by which optimizers it learns"):
        Other.__new__(Other).gradient_steps()
