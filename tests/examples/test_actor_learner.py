"""Actors feed a replay, a learner draws from it, and the policy becomes better."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable

import pytest

gymnasium = pytest.importorskip("gymnasium")
np = pytest.importorskip("numpy")
LoadExample = Callable[[str], types.ModuleType]


def test_an_episode_has_an_action_for_each_observation(load_example: LoadExample) -> None:
    example = load_example("actor_learner")
    environment = gymnasium.make("CartPole-v1")
    observations, actions = example.play(environment, np.zeros(5), np.random.default_rng(3))
    assert observations.shape == (len(actions), 5) and set(actions) == {0, 1}
    assert (observations[:, 4] == 1).all()
    again, _ = example.play(environment, np.zeros(5), np.random.default_rng(3))
    assert np.array_equal(observations, again)


def test_the_replay_keeps_the_newest_and_makes_the_learner_wait_for_them(load_example: LoadExample) -> None:
    replay = load_example("actor_learner").Replay(capacity=3, fresh=2)
    for episode in ("a", "b", "c", "d"):
        replay.insert(episode)
    assert replay.sample() == ["b", "c", "d"]
    sampled: list[str] = []
    learner = threading.Thread(target=lambda: sampled.extend(replay.sample()))
    replay.insert("e")
    learner.start()
    learner.join(0.05)
    assert learner.is_alive()
    replay.insert("f")
    learner.join(120)
    assert sampled == ["d", "e", "f"]


def test_the_learner_imitates_the_longest_episodes(load_example: LoadExample) -> None:
    example = load_example("actor_learner")
    replay = example.Replay(capacity=5, fresh=5)
    long, short = np.tile([1.0, 0, 0, 0, 1], (50, 1)), np.tile([1.0, 0, 0, 0, 1], (10, 1))
    for observations, action in [(short, 0), (long, 1), (short, 0), (short, 0), (short, 0)]:
        replay.insert((observations, np.full(len(observations), action)))
    learner = example.Learner(replay)
    assert learner.learn(1) == [18.0]
    assert example.push_right(learner.weights(), long)[0] > 0.9


def test_the_policy_becomes_better(load_example: LoadExample, monkeypatch: pytest.MonkeyPatch) -> None:
    example = load_example("actor_learner")
    monkeypatch.setattr(example, "STEPS", 12)
    result = example.main(mode="threads")
    assert result["first"] < 40 < result["final"]  # of 8 runs the weakest reached 75


@pytest.mark.soak  # 6 s of CPU time
def test_the_policy_becomes_good(load_example: LoadExample, mode: str) -> None:
    result = load_example("actor_learner").main(mode=mode)
    assert result["first"] < 60  # at random about 22, over 16 episodes
    assert result["final"] > 100  # the weakest of 40 seeds reached 160
