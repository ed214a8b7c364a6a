from __future__ import annotations

from functools import partial
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from ropewalk import rl
from ropewalk.rl.actors.evaluator import EvaluationOver, PolicyEvaluator, evaluate_policy
from ropewalk.rl.environments.gymnasium_env import Gymnasium
from ropewalk.rl.environments.spec import ArraySpec, DiscreteAction, EnvironmentSpec
from ropewalk.rl.policies.policy import ActionChoice
from tests.rl.actors.policies import Always, Remembering, TwoLayers
from tests.rl.environments.scripted import Scripted


class Scripts:
    """A factory of one scripted environment after the other."""

    def __init__(self, *scripts: tuple[str, ...]) -> None:
        self.scripts = iter(scripts)
        self.made: list[Scripted] = []

    def __call__(self, seed: int) -> Scripted:
        self.made.append(Scripted(*next(self.scripts)))
        return self.made[-1]


def test_short_episodes_count_as_often_as_long_ones() -> None:
    """One environment has episodes of 2 steps, the other of 10: score 3 and 55. Each plays half of them."""
    scripts = Scripts(("t2",), ("c10",))
    scores = evaluate_policy(Always(np.array([0, 0])), scripts, episodes=6, seed=0, num_envs=2)
    assert scores.tolist() == [3, 3, 3, 55, 55, 55]
    assert [env.is_closed for env in scripts.made] == [True, True]


def test_episodes_that_do_not_divide_evenly_are_still_that_many() -> None:
    scores = evaluate_policy(
        Always(np.zeros(3, np.int64)), Scripts(("t1",), ("t2",), ("t3",)), episodes=5, seed=0, num_envs=3
    )
    assert scores.tolist() == [1, 1, 3, 3, 6]
    scores = evaluate_policy(Always(np.zeros(2, np.int64)), Scripts(("t1",), ("t2",)), episodes=2, seed=0, num_envs=9)
    assert scores.tolist() == [1, 3]


@pytest.mark.parametrize("make_policy", [TwoLayers, Remembering])
def test_equal_seeds_give_equal_scores(make_policy: Any) -> None:
    factory = Gymnasium("CartPole-v1", max_episode_steps=100)
    scores = [evaluate_policy(make_policy(4, 2), factory, episodes=12, seed=seed).tolist() for seed in (1, 1, 2)]
    assert scores[0] == scores[1] != scores[2]
    assert len(set(scores[0])) > 1, "all episodes began in the same state"


def test_the_policy_is_told_where_an_episode_begins() -> None:
    class Checks(Always):
        def act(self, observation: Any, first: Any, state: Any, rng: Any, *, greedy: bool = False) -> ActionChoice:
            assert greedy and (first == (observation[:, 1] == 0)).all()  # the script shows (episode, step)
            return ActionChoice(self.action)

    evaluate_policy(Checks(np.array([0, 0])), Scripts(("t2",), ("c3",)), episodes=6, seed=0, num_envs=2)


def test_the_recurrent_state_is_reset_with_each_episode() -> None:
    """Alone, one after the other, and together: each episode's score is the same."""
    factory = Gymnasium("CartPole-v1", max_episode_steps=100)
    one = evaluate_policy(Remembering(4, 2), factory, episodes=4, seed=3, num_envs=1)
    assert (evaluate_policy(Remembering(4, 2), factory, episodes=1, seed=3, num_envs=1) == one[:1]).all()
    together = evaluate_policy(Remembering(4, 2), factory, episodes=8, seed=3, num_envs=2)
    assert (together[:4] == one).all()


def test_environments_that_step_together_keep_their_number() -> None:
    native = partial(gymnasium.make_vec, "CartPole-v1", 3, vectorization_mode="vector_entry_point")
    scores = evaluate_policy(TwoLayers(4, 2), lambda seed: native(), episodes=7, seed=0)
    assert scores.shape == (7,) and (scores >= 1).all()


def test_an_episode_that_does_not_end_is_cut_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The rewards of a script are 1, 2, 3, ...; one of its environments has an episode of 1,000 steps.

    What followed a cut once counted as an episode, which had begun in the middle of the other one: 4 + 5 + 6.
    """
    scripts = Scripts(("t1000",), ("t2",))
    scores = evaluate_policy(Always(np.zeros(2, np.int64)), scripts, episodes=4, seed=0, num_envs=2, max_steps=3)
    assert scores.tolist() == [1 + 2 + 3, 1 + 2 + 3, 3, 3]
    assert len(scripts.made[0].seeds) == len(set(scripts.made[0].seeds)) > 1
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 and "episode 0 of environment 0" in told[0] and "max_steps=3" in told[0]
    assert "TimeLimit" in told[0] and "score 6:" in told[0]


def test_a_policy_begins_anew_after_a_cut() -> None:
    firsts: list[list[bool]] = []

    class Notes(Always):
        def act(self, observation: Any, first: Any, state: Any, rng: Any, *, greedy: bool = False) -> ActionChoice:
            firsts.append(first.tolist())
            return ActionChoice(self.action)

    evaluate_policy(Notes(np.array([0])), Scripts(("t1000",)), episodes=2, seed=0, num_envs=1, max_steps=2)
    assert firsts == [[True], [False], [False], [True], [False]]  # the third step only resets


def test_a_vector_environment_that_cannot_be_reset_counts_what_follows(caplog: pytest.LogCaptureFixture) -> None:
    singles = [lambda: Scripted("t1000")]
    scores = evaluate_policy(
        Always(np.zeros(1, np.int64)),
        lambda seed: SyncVectorEnv(singles, autoreset_mode=AutoresetMode.NEXT_STEP),
        episodes=2,
        seed=0,
        max_steps=3,
    )
    assert scores.tolist() == [1 + 2 + 3, 4 + 5 + 6]
    assert all("cannot reset it, the steps that follow count" in each.getMessage() for each in caplog.records)
    assert len(caplog.records) == 2


def test_an_evaluation_that_nobody_waits_for_ends_at_its_next_step_and_closes_its_environments() -> None:
    made: list[Scripted] = []

    def factory(seed: int) -> Scripted:
        made.append(Scripted("t1000"))
        return made[-1]

    evaluator = PolicyEvaluator(factory)
    with pytest.raises(EvaluationOver):
        evaluator.scores(Always(np.zeros(2, np.int64)), 2, seed=0, num_envs=2, is_over=lambda: evaluator.num_calls == 3)
    assert [(env.time, env.is_closed) for env in made] == [(3, True), (3, True)]


@pytest.mark.parametrize(("episodes", "num_envs"), [(0, 1), (3, 0)])
def test_counts_below_one_are_refused(episodes: int, num_envs: int) -> None:
    with pytest.raises(
        ValueError, match=f"episodes is {episodes}, num_envs is {num_envs} and max_steps is 100000; all"
    ):
        evaluate_policy(Always(np.array([0])), Scripts(), episodes=episodes, seed=0, num_envs=num_envs)


def test_a_policy_of_another_environment_is_refused_with_what_differs() -> None:
    """It was told as an array of size 3 that cannot be reshaped into (1, 4)."""
    cartpole = EnvironmentSpec(ArraySpec((4,)), DiscreteAction(2))
    policy = rl.PPO().make_policy(cartpole, None)
    policy.spec = cartpole
    message = (
        r"^the policy was made for an environment with observation \(4,\), action one of 2, and this one has "
        r"observation \(3,\), action 1 number$"
    )
    with pytest.raises(ValueError, match=message):
        evaluate_policy(policy, rl.Gymnasium("Pendulum-v1"), episodes=1, seed=0)


def test_an_environment_in_place_of_what_makes_some_is_refused() -> None:
    with pytest.raises(TypeError, match=r"environment makes an environment from a seed.*; it is <"):
        evaluate_policy(Always(np.array([0])), cast("Any", Scripted("t1")), episodes=1, seed=0)


def test_what_is_no_policy_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"^policy is of type builtin_function_or_method; give result\.policy\(\), or rl\.load_policy"
    ):
        evaluate_policy(cast("Any", print), rl.Gymnasium("CartPole-v1"), episodes=1, seed=0)
