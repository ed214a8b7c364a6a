from __future__ import annotations

import logging
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ropewalk.errors import EnvironmentFailed
from ropewalk.rl.environments.environment import EnvironmentHistory
from ropewalk.rl.environments.gymnasium_env import Gymnasium
from ropewalk.rl.environments.serial import EPISODES_OF_A_LIFE, SerialVectorEnvironment
from ropewalk.rl.seeds import derived_seed
from tests.rl.environments.scripted import Faulty, Scripted, listed


class Makes:
    """A factory that keeps what it made."""

    def __init__(self, *made: gymnasium.Env[Any, Any]) -> None:
        self.waiting, self.made, self.seeds = list(made), list[Any](), list[int]()

    def __call__(self, seed: int) -> gymnasium.Env[Any, Any]:
        self.seeds.append(seed)
        self.made.append(self.waiting.pop(0))
        return self.made[-1]


def test_the_ends_of_episodes_are_as_the_contract_says() -> None:
    """Two environments by hand; both return one buffer for all their observations."""
    envs = SerialVectorEnvironment(Makes(Scripted("t2", "c1", "t9"), Scripted("c3", "b2")), 2, seed=7)
    rows = [listed(envs.reset())]
    steps = [envs.step(np.array([0, 1])) for _ in range(6)]
    rows += [listed(step.observation) for step in steps]

    # (episode, step) of both environments; the last observation of every episode is there, and then the first one
    assert [row[0] for row in rows] == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [2, 0], [2, 1]]
    assert [row[1] for row in rows] == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [1, 1], [1, 2]]
    assert [step.reward.tolist() for step in steps] == [[1, 1], [2, 2], [0, 3], [1, 0], [0, 1], [1, 2]]
    assert [step.terminated[0] for step in steps] == [False, True, False, False, False, False]
    assert [step.truncated[0] for step in steps] == [False, False, False, True, False, False]
    assert [step.mask[0] for step in steps] == [True, True, False, True, False, True]
    assert [step.terminated[1] for step in steps] == [False, False, False, False, False, True]
    assert [step.truncated[1] for step in steps] == [False, False, True, False, False, True]
    assert [step.mask[1] for step in steps] == [True, True, True, False, True, True]
    assert [sorted(step.final_info) for step in steps] == [[], [0], [1], [0], [], [1]]
    assert steps[1].final_info[0] == {"is_success": True, "name": "scripted"}
    assert (steps[0].reward.dtype, steps[0].mask.dtype) == (np.float32, np.bool_)


def test_what_an_environment_said_at_the_end_of_an_episode_is_not_what_it_says_later() -> None:
    """Its `info` is one dictionary, whose entries it changes. Only at the end of a block are they read."""

    class OneInfo(Scripted):
        told: ClassVar[dict[str, Any]] = {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            *others, info = super().step(action)
            self.told.update(info, time=self.time)
            return *others, self.told  # type: ignore[return-value]

    envs = SerialVectorEnvironment(Makes(OneInfo("t2")), 1, seed=0)
    envs.reset()
    _, ends, *_ = [envs.step(np.array([0])) for _ in range(4)]
    assert (ends.final_info[0]["is_success"], ends.final_info[0]["time"]) == (True, 2)


def test_the_action_of_a_step_that_begins_an_episode_is_ignored() -> None:
    makes = Makes(Scripted("t1", "t2"))
    envs = SerialVectorEnvironment(makes, 1, seed=0)
    envs.reset()
    for action in (0, 1, 2, 0):
        envs.step(np.array([action]))
    assert makes.made[0].actions == [[0], [2, 0]]


def test_each_reset_is_seeded_by_numbers_alone() -> None:
    makes = Makes(Scripted("t1"), Scripted("t1"))
    envs = SerialVectorEnvironment(makes, 2, seed=5, group=3, life=2)
    envs.reset()
    for _ in range(4):
        envs.step(np.zeros(2, np.int64))
    start = 2 * EPISODES_OF_A_LIFE
    for env in range(2):
        expected = [derived_seed(5, "episode", 3, env, start + episode) for episode in range(3)]
        assert makes.made[env].seeds == expected
    assert makes.seeds == [derived_seed(5, "environment", 3, env, 2) for env in range(2)]


def test_observations_that_were_returned_are_not_written_to_again() -> None:
    envs = SerialVectorEnvironment(Makes(Scripted("t3")), 1, seed=0)
    first = envs.reset()
    step = envs.step(np.array([0]))
    kept = listed(step.observation)
    for _ in range(5):
        envs.step(np.array([0]))
    assert listed(first) == [[0, 0]] and listed(step.observation) == kept


class Recording(gymnasium.Env[Any, Any]):
    """Keeps the actions it gets, and shows several arrays."""

    observation_space = spaces.Dict(
        {"position": spaces.Box(-1, 1, (2,), np.float64), "room": spaces.Discrete(5), "map": spaces.MultiBinary((2, 3))}
    )

    def __init__(self, action_space: Any) -> None:
        self.action_space = action_space
        self.got: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return {"position": np.array([0.1, 0.2]), "room": 3, "map": np.ones((2, 3), np.int8)}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.got.append(action)
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        return {"position": np.array([0.3, 0.4]), "room": 4, "map": np.zeros((2, 3), np.int8)}, 0.0, False, False, {}


def test_dictionaries_of_observations_are_put_together_by_name() -> None:
    envs = SerialVectorEnvironment(lambda seed: Recording(spaces.Discrete(2)), 3, seed=0)
    first = envs.reset()
    assert isinstance(first, dict)
    assert {name: (array.shape, str(array.dtype)) for name, array in first.items()} == {
        "position": ((3, 2), "float32"),
        "room": ((3,), "int64"),
        "map": ((3, 2, 3), "int64"),
    }
    after = envs.step(np.zeros(3, np.int64)).observation
    assert isinstance(after, dict)
    assert (
        after["room"].tolist() == [4, 4, 4]
        and after["position"].tolist() == np.array([[0.3, 0.4]] * 3, np.float32).tolist()
    )
    assert first["room"].tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    ("space", "stored", "given"),
    [
        (spaces.Discrete(3, start=5), np.array([2, 0]), [7, 5]),
        (spaces.Discrete(3), np.array([2, 0]), [2, 0]),
        (spaces.MultiDiscrete([2, 3], start=[1, 10]), np.array([[1, 2], [0, 0]]), [[2, 12], [1, 10]]),
        (spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])), np.arange(8).reshape(2, 4) % 2, [[[0, 1], [0, 1]]] * 2),
        (spaces.MultiBinary(2), np.array([[1, 0], [0, 1]]), [[1, 0], [0, 1]]),
        (spaces.Box(-1, 2, (2,), np.float32), np.array([[-5, 0.5], [7, 2]], np.float32), [[-1, 0.5], [2, 2]]),
        (spaces.Box(-1, 1, (1, 2), np.float64), np.array([[-5, 0.5], [0, 0]], np.float32), [[[-1, 0.5]], [[0, 0]]]),
    ],
    ids=str,
)
def test_an_action_is_in_the_space_of_its_environment(space: Any, stored: Any, given: list[Any]) -> None:
    makes = Makes(Recording(space), Recording(space))
    envs = SerialVectorEnvironment(makes, 2, seed=0)
    envs.reset()
    kept = stored.copy()
    envs.step(stored)
    assert [np.asarray(env.got[0]).tolist() for env in makes.made] == given
    assert (stored == kept).all(), "the stored action was clipped in place"
    assert envs.history().actions[1].tolist() == [stored[1].tolist()], "the history has the unclipped action"


def test_an_observation_that_differs_from_its_space_is_refused_at_the_reset() -> None:
    class Liar(Scripted):
        observation_space = spaces.Box(-1, 1, (3,), np.float32)

    with pytest.raises(ValueError, match=r"shape \(2,\) and dtype float32, and the observation space has shape \(3,\)"):
        SerialVectorEnvironment(Makes(Liar("t3")), 1, seed=0).reset()

    class OtherNames(Recording):
        observation_space = spaces.Dict({"position": spaces.Box(-1, 1, (2,)), "rooms": spaces.Discrete(5)})

    with pytest.raises(ValueError, match=r"'map', 'position', 'room'.*'position', 'rooms'"):
        SerialVectorEnvironment(Makes(OtherNames(spaces.Discrete(2))), 1, seed=0).reset()


class Forgets(Recording):
    """Leaves an entry out in its steps."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, *others = super().step(action)
        del observation["room"]
        return observation, *others  # type: ignore[return-value]


def test_an_entry_that_a_step_left_out_is_named() -> None:
    envs = SerialVectorEnvironment(Makes(Forgets(spaces.Discrete(2))), 1, seed=1)
    envs.reset()
    with pytest.raises(
        ValueError, match=r"an observation has \['map', 'position'\], and the observation space has .*'room"
    ):
        envs.step(np.zeros(1, np.int64))


class ShrinksInStep(Scripted):
    """Its observations fit at each reset; those of steps would be repeated by numpy."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), *super().step(action)[1:]


def test_an_observation_of_a_step_that_numpy_would_repeat_is_refused() -> None:
    envs = SerialVectorEnvironment(lambda seed: ShrinksInStep("t9"), 1, seed=1)
    envs.reset()
    with pytest.raises(ValueError, match=r"has shape \(1,\), and the observation space has shape \(2,\)"):
        envs.step(np.zeros(1, np.int64))


class ShowsShares(Scripted):
    """Says that it shows bytes, and shows numbers between 0 and 1 in steps."""

    observation_space = spaces.Box(0, 255, (2,), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)[0].astype(np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.full(2, 0.5), *super().step(action)[1:]


def test_an_observation_of_a_step_whose_digits_numpy_would_cut_off_is_refused() -> None:
    envs = SerialVectorEnvironment(lambda seed: ShowsShares("t9"), 1, seed=1)
    envs.reset()
    with pytest.raises(ValueError, match="an observation has dtype float64, and the observation space has dtype uint8"):
        envs.step(np.zeros(1, np.int64))


def played(envs: SerialVectorEnvironment, actions: Any) -> list[Any]:
    return [(listed(step.observation), step.reward.tolist(), step.mask.tolist()) for step in map(envs.step, actions)]


@pytest.mark.parametrize("num_steps", [0, 1, 9, 10, 11, 60, 200])
def test_environments_that_are_resumed_go_on_bit_for_bit(num_steps: int) -> None:
    factory = Gymnasium("CartPole-v1", max_episode_steps=11)
    actions = np.random.default_rng(0).integers(0, 2, (300, 4))
    envs = SerialVectorEnvironment(factory, 4, seed=1, group=2)
    envs.reset()
    played(envs, actions[:num_steps])
    history = envs.history()
    again = SerialVectorEnvironment(factory, 4, seed=1, group=2)
    again.resume(history)
    assert_same(again.history(), history)
    assert played(again, actions[num_steps:]) == played(envs, actions[num_steps:])


def assert_same(one: EnvironmentHistory, other: EnvironmentHistory) -> None:
    assert (one.episodes, one.ended) == (other.episodes, other.ended)
    assert [actions.tolist() for actions in one.actions] == [actions.tolist() for actions in other.actions]


def test_resumed_environments_show_what_was_last_seen() -> None:
    factory = partial(Gymnasium("Pendulum-v1", max_episode_steps=7), 0)
    envs = SerialVectorEnvironment(lambda seed: factory(), 2, seed=1)
    envs.reset()
    for step in range(15):
        last = envs.step(np.full((2, 1), 0.1 * step, np.float32))
        again = SerialVectorEnvironment(lambda seed: factory(), 2, seed=1)
        assert listed(again.resume(envs.history())) == listed(last.observation)
        assert again.history().ended == tuple((last.terminated | last.truncated).tolist())


def test_an_environment_that_does_not_do_the_same_again_is_named() -> None:
    envs = SerialVectorEnvironment(Makes(Scripted("t5")), 1, seed=0)
    envs.reset()
    for _ in range(4):
        envs.step(np.array([0]))
    with pytest.raises(EnvironmentFailed, match="its episode 0 ended after step 3 of 4, and did not when") as caught:
        SerialVectorEnvironment(Makes(Scripted("t3")), 1, seed=0).resume(envs.history())
    assert (caught.value.env, caught.value.episode, caught.value.seed) == (0, 0, derived_seed(0, "episode", 0, 0, 0))
    envs.step(np.array([0]))
    with pytest.raises(EnvironmentFailed, match="went on after step 5 of 5, and ended there when"):
        SerialVectorEnvironment(Makes(Scripted("t9")), 1, seed=0).resume(envs.history())


def test_an_episode_that_an_error_cut_is_resumed_though_the_error_does_not_come_again() -> None:
    """As after a crash of a simulator, whose next process does not crash at that step."""
    envs = SerialVectorEnvironment(Makes(Faulty(step=3), Faulty()), 1, seed=0, on_error="truncate")
    envs.reset()
    *_, last = [envs.step(np.array([0])) for _ in range(3)]
    assert last.truncated.tolist() == [True] and listed(last.observation) == [[2]]
    again = SerialVectorEnvironment(Makes(Faulty()), 1, seed=0, on_error="truncate")
    assert listed(again.resume(envs.history())) == [[2]], "another one than the block before it ended with"
    assert_same(again.history(), envs.history())
    assert played(again, [np.array([0])]) == played(envs, [np.array([0])]) == [([[0]], [0], [False])]


def test_a_history_of_another_number_of_environments_is_refused() -> None:
    envs = SerialVectorEnvironment(Makes(Scripted("t5")), 1, seed=0)
    envs.reset()
    with pytest.raises(ValueError, match="is of 1 environments, and this vector environment has 2"):
        SerialVectorEnvironment(Makes(Scripted("t5"), Scripted("t5")), 2, seed=0).resume(envs.history())


def test_actions_that_nobody_will_ask_for_are_not_kept() -> None:
    """An episode without end would take memory without bound."""
    envs = SerialVectorEnvironment(Makes(Scripted("t9")), 1, seed=0, keeps_history=False)
    envs.reset()
    envs.step(np.array([0]))
    assert envs._actions is None
    with pytest.raises(RuntimeError, match="keeps_history=False"):
        envs.history()


def test_an_error_names_environment_episode_and_seed() -> None:
    envs = SerialVectorEnvironment(Makes(Scripted("t9"), Faulty(step=2)), 1, seed=4)
    faulty = SerialVectorEnvironment(Makes(Faulty(step=2)), 1, seed=4)
    envs.close()
    faulty.reset()
    faulty.step(np.array([0]))
    with pytest.raises(ZeroDivisionError) as caught:
        faulty.step(np.array([0]))
    seed = derived_seed(4, "episode", 0, 0, 0)
    assert caught.value.__notes__ == [f"environment 0 of group 0, in its step 2 of episode 0, seeded with {seed}"]


def test_a_reward_that_is_no_number_is_an_error_of_the_environment() -> None:
    class Unrewarded(Scripted):
        def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
            observation, reward, terminated, truncated, info = super().step(action)
            return observation, None if self.time == 2 else reward, terminated, truncated, info

    envs = SerialVectorEnvironment(Makes(Unrewarded("t9")), 1, seed=0)
    envs.reset()
    envs.step(np.array([0]))
    with pytest.raises(TypeError) as caught:
        envs.step(np.array([0]))
    assert caught.value.__notes__[0].startswith("environment 0 of group 0, in its step 2 of episode 0, seeded with ")


def test_an_error_truncates_the_episode_if_that_is_asked(caplog: pytest.LogCaptureFixture) -> None:
    makes = Makes(Faulty(step=3), Faulty(), Faulty(step=3), Faulty(step=3))
    envs = SerialVectorEnvironment(makes, 2, seed=4, on_error="truncate")
    envs.reset()
    with caplog.at_level(logging.WARNING):
        steps = [envs.step(np.zeros(2, np.int64)) for _ in range(8)]
    # env 0: step 3 fails; then a reset, two good steps, the second failure, a reset
    assert [listed(step.observation)[0][0] for step in steps] == [1, 2, 2, 0, 1, 2, 2, 0]
    assert [step.reward[0] for step in steps] == [1, 1, 0, 0, 1, 1, 0, 0]
    assert [step.truncated[0] for step in steps] == [False, False, True, False, False, False, True, False]
    assert not any(step.terminated.any() for step in steps)
    assert [step.mask[0] for step in steps] == [True, True, True, False, True, True, True, False]
    # the other environment does not notice
    assert [listed(step.observation)[1][0] for step in steps] == [1, 2, 3, 4, 5, 6, 0, 1]
    assert len(makes.made) == 4, "an environment that raised was not made again"
    assert [record.exc_info is not None for record in caplog.records] == [True, False], "one traceback for each place"
    assert "seeded with" in caplog.text and "ZeroDivisionError: the ball left the table" in caplog.text


def test_a_truncated_episode_shows_what_was_seen_before_its_error() -> None:
    envs = SerialVectorEnvironment(lambda seed: Faulty(step=1), 1, seed=0, on_error="truncate")
    assert listed(envs.reset()) == [[0]]
    step = envs.step(np.zeros(1, np.int64))
    assert listed(step.observation) == [[0]] and step.truncated.tolist() == [True]


def test_a_seed_that_always_fails_is_given_up() -> None:
    envs = SerialVectorEnvironment(lambda seed: Faulty(resets=1), 1, seed=4, on_error="truncate")
    seed = derived_seed(4, "episode", 0, 0, 0)
    with pytest.raises(EnvironmentFailed, match=f"failed 3 times in a row with the seed {seed}.*no level") as caught:
        envs.reset()
    assert caught.value.seed == seed and isinstance(caught.value.__cause__, ValueError)


def test_an_environment_whose_episodes_all_fail_is_given_up() -> None:
    envs = SerialVectorEnvironment(lambda seed: Faulty(step=1), 1, seed=4, on_error="truncate")
    envs.reset()
    seeds = [derived_seed(4, "episode", 0, 0, episode) for episode in range(10)]
    with pytest.raises(EnvironmentFailed, match=", ".join(map(str, seeds))):
        played(envs, [np.zeros(1, np.int64)] * 100)


def test_failures_between_episodes_that_end_are_put_up_with() -> None:
    """Every second episode fails, 20 times in all."""
    made: list[Faulty] = []

    def make(seed: int) -> Faulty:
        made.append(FailsLater())
        return made[-1]

    envs = SerialVectorEnvironment(make, 1, seed=4, on_error="truncate")
    envs.reset()
    steps = [envs.step(np.zeros(1, np.int64)) for _ in range(20 * 10)]
    assert sum(bool(step.truncated[0]) for step in steps) == 40
    assert len(made) == 21


class FailsLater(Faulty):
    """Raises in the second episode, in step 2, after one of 6 steps."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.fatal_step = 0 if self.time == 0 else 2
        return super().reset(seed=seed, options=options)


def test_environments_are_closed_once_and_also_if_making_the_others_fails() -> None:
    makes = Makes(Scripted("t1"), Scripted("t1"))
    with pytest.raises(IndexError):
        SerialVectorEnvironment(makes, 3, seed=0)
    assert [env.is_closed for env in makes.made] == [True, True]
    envs = SerialVectorEnvironment(Makes(Scripted("t1")), 1, seed=0)
    envs.close()
    envs.close()


def test_an_environment_that_cannot_be_closed_leaves_none_open() -> None:
    class Stuck(Scripted):
        def close(self) -> None:
            raise OSError("the window does not close")

    makes = Makes(Scripted("t1"), Stuck("t1"), Scripted("t1"))
    envs = SerialVectorEnvironment(makes, 3, seed=0)
    with pytest.raises(OSError, match="the window"):
        envs.close()
    assert [env.is_closed for env in makes.made] == [True, False, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"num_envs": 0}, "num_envs is 0"), ({"num_envs": 1, "on_error": "ignore"}, "'ignore'; use one of 'raise', 't")],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SerialVectorEnvironment(lambda seed: Scripted("t1"), seed=0, **arguments)
