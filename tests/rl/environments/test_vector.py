from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation, TimeLimit
from gymnasium.wrappers.vector import NormalizeReward

from ropewalk.rl.environments.environment import VectorEnvironment
from ropewalk.rl.environments.gymnasium_env import Gymnasium
from ropewalk.rl.environments.gymnasium_vector import GymnasiumVectorEnvironment
from ropewalk.rl.environments.serial import SerialVectorEnvironment
from ropewalk.rl.environments.spec import ArraySpec, DiscreteAction, EnvironmentSpec
from ropewalk.rl.environments.vector import environment_spec, make_vector
from tests.rl.environments.scripted import Faulty, Scripted, listed

CART_POLE = EnvironmentSpec(ArraySpec((4,)), DiscreteAction(2))


def native(seed: int, num_envs: int = 3) -> Any:
    return gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")


class Synchronous:
    """A factory of scripted environments under `SyncVectorEnv`, and whether they were closed."""

    def __init__(self, mode: AutoresetMode, copy: bool = False) -> None:
        self.mode, self.copy = mode, copy
        self.made: list[Any] = []

    def __call__(self, seed: int) -> Any:
        self.singles = [Scripted("t2", "c1", "t9"), Scripted("c3", "b2")]
        makers = [lambda single=single: single for single in self.singles]
        return SyncVectorEnv(makers, copy=self.copy, autoreset_mode=self.mode)


def test_single_environments_are_stepped_in_sequence() -> None:
    envs = make_vector(Gymnasium("CartPole-v1"), 5, seed=0, group=1)
    assert isinstance(envs, SerialVectorEnvironment)
    assert (envs.num_envs, envs.spec) == (5, CART_POLE)
    envs.close()


def test_a_vector_environment_gives_the_same_as_single_ones() -> None:
    """With `copy=False` it returns one array in all steps, as many others do."""
    serial = SerialVectorEnvironment(iter_factory(), 2, seed=0)
    vector = make_vector(Synchronous(AutoresetMode.NEXT_STEP), 2, seed=0)
    assert isinstance(vector, GymnasiumVectorEnvironment)
    shown: list[list[Any]] = []
    for envs in (serial, vector):
        first = envs.reset()
        steps = [envs.step(np.array([0, 1])) for _ in range(8)]
        arrays = [
            (step.observation, step.reward, step.terminated, step.truncated, step.mask, step.final_info)
            for step in steps
        ]
        shown.append(
            [listed(first), *[[a.tolist() if isinstance(a, np.ndarray) else a for a in row] for row in arrays]]
        )
    assert shown[0] == shown[1]
    vector.close()
    vector.close()


def iter_factory() -> Any:
    waiting = iter([Scripted("t2", "c1", "t9"), Scripted("c3", "b2")])
    return lambda seed: next(waiting)


def test_a_native_vector_environment_masks_the_steps_that_begin_episodes() -> None:
    envs = make_vector(partial(native, num_envs=8), 8, seed=0)
    assert (envs.num_envs, envs.spec) == (8, CART_POLE)
    envs.reset()
    ended, rng = np.zeros(8, np.bool_), np.random.default_rng(0)
    for _ in range(200):
        step = envs.step(rng.integers(0, 2, 8))
        assert (step.mask == ~ended).all()
        assert (step.reward == step.mask).all()
        assert not (step.terminated & ~step.mask).any()
        ended = step.terminated | step.truncated
    with pytest.raises(NotImplementedError, match="GymnasiumVectorEnvironment cannot be brought back"):
        envs.history()
    envs.close()


class LikeEnvPool(gymnasium.vector.VectorEnv[Any, Any, Any], gymnasium.Env[Any, Any]):  # type: ignore[misc]
    """EnvPool 1.2.5's environments are of both classes, have the spaces of a single one, and are seeded when made."""

    def __init__(self, num_envs: int, seed: int) -> None:
        self.inner, self.num_envs, self.own_seed = native(seed, num_envs), num_envs, seed
        self.metadata = self.inner.metadata
        self.observation_space = self.single_observation_space = self.inner.single_observation_space
        self.action_space = self.single_action_space = self.inner.single_action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.inner.reset(seed=self.own_seed)

    def step(self, actions: Any) -> Any:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.inner.step(actions)

    def close(self, **kwargs: Any) -> None:
        self.inner.close()


def test_a_vector_environment_that_is_a_single_one_too_is_stepped_as_a_vector() -> None:
    def factory(seed: int) -> Any:
        return LikeEnvPool(4, seed)

    assert environment_spec(factory) == CART_POLE
    shown: list[Any] = []
    for life in (0, 0, 1):  # an actor that was killed and restarted does not see the same episodes again
        envs = make_vector(factory, 4, seed=0, life=life)
        assert isinstance(envs, GymnasiumVectorEnvironment)
        shown.append(listed(envs.reset()))
        assert envs.step(np.zeros(4, np.int64)).reward.tolist() == [1, 1, 1, 1]
        envs.close()
    assert shown[0] == shown[1] != shown[2]


def test_what_is_said_of_a_step_that_begins_an_episode_is_not_believed() -> None:
    class Careless(gymnasium.vector.VectorEnv[Any, Any, Any]):
        """Has a reward and an end in each step, also in those that begin an episode."""

        metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
        num_envs = 1
        single_observation_space = Scripted.observation_space
        single_action_space = Scripted.action_space

        def reset(self, **arguments: Any) -> Any:
            return np.zeros((1, 2), np.float32), {}

        def step(self, actions: Any) -> Any:
            return np.zeros((1, 2), np.float32), np.ones(1), np.ones(1, np.bool_), np.ones(1, np.bool_), {}

    envs = make_vector(lambda seed: Careless(), 1, seed=0)
    envs.reset()
    steps = [envs.step(np.array([0])) for _ in range(3)]
    assert [step.mask.tolist() for step in steps] == [[True], [False], [True]]
    for name in ("reward", "terminated", "truncated"):
        assert [getattr(step, name).tolist() for step in steps] == [[1], [0], [1]]


def test_vector_environments_are_seeded_by_the_run() -> None:
    def first(seed: int, group: int, life: int = 0) -> Any:
        envs = make_vector(native, 3, seed, group, life=life)
        try:
            return listed(envs.reset())
        finally:
            envs.close()

    assert first(1, 2) == first(1, 2)
    assert len({str(first(*path)) for path in [(1, 2), (1, 3), (2, 2), (1, 2, 1)]}) == 4


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("make", [partial(make_vector, num_envs=2, seed=0), environment_spec])
def test_other_autoreset_modes_are_refused(mode: AutoresetMode, make: Any) -> None:
    factory = Synchronous(mode)
    with pytest.raises(ValueError, match=rf"SyncVectorEnv has autoreset mode {mode.name}.*autoreset_mode=.*NEXT_STEP"):
        make(factory)
    assert [single.is_closed for single in factory.singles] == [True, True]


def test_a_vector_of_another_size_is_refused_unless_its_size_is_taken() -> None:
    with pytest.raises(ValueError, match="a vector of 3 environments, and 8 are asked for"):
        make_vector(native, 8, seed=0)
    envs = make_vector(native, 8, seed=0, exact=False)
    assert envs.num_envs == 3
    envs.close()


def test_a_vector_environment_of_ours_is_taken_as_it_is() -> None:
    def ours(seed: int) -> VectorEnvironment:
        return SerialVectorEnvironment(Gymnasium("CartPole-v1"), 2, seed)

    assert environment_spec(ours) == CART_POLE
    envs = make_vector(ours, 2, seed=0)
    assert isinstance(envs, SerialVectorEnvironment)
    envs.close()


@pytest.mark.parametrize("make", [partial(make_vector, num_envs=2, seed=0), environment_spec])
def test_what_is_no_environment_is_refused(make: Any) -> None:
    with pytest.raises(TypeError, match="the factory made str; it takes a seed"):
        make(lambda seed: "CartPole-v1")


def test_the_environment_that_is_made_for_its_spec_is_closed() -> None:
    made = Scripted("t1")
    assert environment_spec(lambda seed: made).action == DiscreteAction(3)
    assert made.is_closed


def test_the_factory_says_what_an_error_does() -> None:
    class Fragile:
        on_error = "truncate"

        def __call__(self, seed: int) -> Any:
            return Faulty(step=2)

    envs = make_vector(Fragile(), 1, seed=0)
    envs.reset()
    envs.step(np.array([0]))
    assert envs.step(np.array([0])).truncated.tolist() == [True]
    envs = make_vector(Fragile(), 1, seed=0, on_error="raise")
    envs.reset()
    envs.step(np.array([0]))
    with pytest.raises(ZeroDivisionError):
        envs.step(np.array([0]))


def test_settings_of_an_environment_are_compared_printed_and_pickled() -> None:
    made = Gymnasium("CartPole-v1", wrappers=(partial(TimeLimit, max_episode_steps=3),), max_episode_steps=20)
    assert made == Gymnasium(made.id, wrappers=made.wrappers, max_episode_steps=20)
    assert made != Gymnasium("CartPole-v1") and made != Gymnasium("CartPole-v1", wrappers=made.wrappers)
    copy = pickle.loads(pickle.dumps(Gymnasium("CartPole-v1", wrappers=(Wrapped,), sutton_barto_reward=True)))
    assert repr(copy).startswith(f"Gymnasium(id='CartPole-v1', wrappers=({Wrapped!r},), on_error='raise', kwargs={{'su")
    assert isinstance(copy(0), Wrapped)
    with pytest.raises(AttributeError):
        made.id = "Pendulum-v1"  # pyright: ignore[reportAttributeAccessIssue]


class Wrapped(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Does nothing."""


def test_wrappers_are_applied_in_their_order_and_arguments_reach_the_environment() -> None:
    env = Gymnasium("CartPole-v1", wrappers=(Wrapped, partial(TimeLimit, max_episode_steps=3)), max_episode_steps=9)(0)
    assert isinstance(env, TimeLimit) and isinstance(env.env, Wrapped)
    assert env.spec is not None and "PassiveEnvChecker" not in str(env)
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    ("wrappers", "message"),
    [
        (TimeLimit, "wrappers is <class .*TimeLimit'>; give a tuple, such as"),
        ("TimeLimit", "wrappers is 'TimeLimit'; give a tuple"),
        (3, "wrappers is 3; give a tuple"),
        (
            (TimeLimit,),
            r"TimeLimit among the wrappers is called with .* 'max_episode_steps'\); .* functools.partial\(Time",
        ),
        (["TimeLimit"], "'TimeLimit' among the wrappers cannot be called"),
    ],
)
def test_wrappers_that_cannot_be_applied_are_refused_where_they_are_given(wrappers: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Gymnasium("CartPole-v1", wrappers=wrappers)


def test_a_class_is_no_id() -> None:
    with pytest.raises(TypeError, match=r"id is of type .*; give the id of a registered environment; .*`lambda seed"):
        Gymnasium(Scripted)  # type: ignore[arg-type]


def test_an_unknown_environment_is_named_before_anything_starts() -> None:
    with pytest.raises(gymnasium.error.NameNotFound, match="CartPoole"):
        environment_spec(Gymnasium("CartPoole-v1"))


class OfOldGym(Scripted):
    """Has the interface of Gym before 0.26."""

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset(seed=0)[0]


class FourValues(Scripted):
    def step(self, action: Any) -> Any:
        return super().step(action)[:4]


class Broken(Scripted):
    def step(self, action: Any) -> Any:
        first, second = (1, 2, 3)  # type: ignore[misc]
        raise AssertionError(first, second)


@pytest.mark.parametrize("wrap", [lambda env: env, partial(TimeLimit, max_episode_steps=9)], ids=["bare", "wrapped"])
@pytest.mark.parametrize(("kind", "is_advised"), [(OfOldGym, True), (FourValues, True), (Broken, False)])
def test_an_environment_of_old_gym_is_recognised(kind: Any, is_advised: bool, wrap: Any) -> None:
    """The wrapper is what fails in the second case: it calls the environment as we do."""

    def play() -> None:
        envs = make_vector(lambda seed: wrap(kind("t9")), 1, seed=0)
        envs.reset()
        envs.step(np.array([0]))

    with pytest.raises((TypeError, ValueError)) as caught:
        play()
    notes = "\n".join(caught.value.__notes__)
    assert "seeded with" in notes
    assert ("written for Gym before 0.26" in notes) is is_advised


@pytest.mark.parametrize("returned", [np.zeros(2), {"a": 1, "b": 2}, [0.5, 0.5], np.zeros(4), None])
def test_a_reset_that_returns_the_observation_alone_is_told(returned: Any) -> None:
    """Two numbers, and a dictionary with two entries, look like two values."""

    class Alone(Scripted):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return returned

    with pytest.raises(TypeError, match=r"returns \(observation, info\), .* but it returned .*shimmy") as caught:
        make_vector(lambda seed: Alone("t9"), 1, seed=0).reset()
    assert repr(returned) in str(caught.value) and "seeded with" in caught.value.__notes__[0]


def test_statistics_of_one_environment_are_told_of_where_that_is_asked(caplog: pytest.LogCaptureFixture) -> None:
    """An evaluation, whose environment has shown nothing yet, would be of other observations than training."""
    factory = Gymnasium("CartPole-v1", wrappers=(NormalizeObservation, Wrapped))
    environment_spec(factory)
    environment_spec(Gymnasium("CartPole-v1", wrappers=(Wrapped,)), tells=True)
    environment_spec(native, tells=True)
    assert not caplog.records
    environment_spec(factory, tells=True)
    environment_spec(lambda seed: NormalizeReward(native(seed)), tells=True)
    told = [record.getMessage() for record in caplog.records]
    assert [words.partition(" ")[0] for words in told] == ["NormalizeObservation", "NormalizeReward"]
    assert "normalise_observations=True" in told[0]


def test_an_environment_without_spaces_is_refused_with_what_to_set() -> None:
    class Bare(gymnasium.Env[Any, Any]):
        pass

    with pytest.raises(TypeError, match="Bare has no observation_space and no action_space; set both"):
        environment_spec(lambda seed: Bare())


class Returning(Scripted):
    """Returns something else than its script says, from its second step on."""

    def __init__(self, **changes: Any) -> None:
        super().__init__("t2")
        self.changes = changes

    def step(self, action: Any) -> Any:
        names = ("observation", "reward", "terminated", "truncated", "info")
        returned = dict(zip(names, super().step(action), strict=True))
        return tuple((returned | (self.changes if self.time == 2 else {})).values())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"reward": None}, "it returned reward=None, terminated=True"),
        ({"reward": np.ones(1)}, r"reward=array\(\[1.\]\)"),
        ({"terminated": np.array([False, True])}, r"terminated=array\(\[False,  True\]\)"),
        ({"terminated": None}, "terminated=None, truncated=False"),  # of a branch without a return
        ({"truncated": None}, "terminated=True, truncated=None"),
        ({"info": None}, "info=None"),
        ({"truncated": {}, "info": False}, "truncated={}, info=False"),  # the order of an older interface
    ],
)
def test_what_a_step_returned_in_another_form_is_shown_with_its_place(changes: dict[str, Any], words: str) -> None:
    envs = make_vector(lambda seed: Returning(**changes), 1, seed=0)
    envs.reset()
    envs.step(np.array([0]))
    with pytest.raises(TypeError, match=f"^step returns .observation, reward, .*{words}") as caught:
        envs.step(np.array([0]))
    (note,) = caught.value.__notes__
    assert "environment 0 of group 0, in its step 2 of episode 0" in note


def test_one_environment_for_several_seeds_is_refused_even_in_wrappers() -> None:
    shared = Scripted("t9")
    with pytest.raises(ValueError, match=r"environments 0 and 1 of 2 are the same Scripted: .*lambda seed: Scripted"):
        make_vector(lambda seed: TimeLimit(shared, 5), 2, seed=0)
    make_vector(lambda seed: shared, 1, seed=0).close()


class Numbered(Scripted):
    """Shows a number that its Discrete space may not have."""

    observation_space = spaces.Discrete(3, start=5)

    def __init__(self, number: int) -> None:
        super().__init__("t9")
        self.number = number

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return 5, {}

    def step(self, action: Any) -> Any:
        return self.number, *super().step(action)[1:]


@pytest.mark.parametrize("number", [4, 8])
def test_a_number_outside_of_a_discrete_space_is_refused(number: int) -> None:
    """As an index, 4 would be the last entry of a one-hot vector."""
    envs = make_vector(lambda seed: Numbered(number), 1, seed=0)
    envs.reset()
    with pytest.raises(ValueError, match=f"has the value {number}, and the observation space has .* from 5 to 7"):
        envs.step(np.array([0]))
    inside = make_vector(lambda seed: Numbered(7), 1, seed=0)
    inside.reset()
    assert inside.step(np.array([0])).observation == 7
