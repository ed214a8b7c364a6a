from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.errors import EnvironmentFailed, EnvironmentLost, ProgramFailed, RemoteError
from ropewalk.rl.environments.environment import VectorEnvironment
from ropewalk.rl.environments.gymnasium_env import Gymnasium
from ropewalk.rl.environments.isolated import Isolated, IsolatedEnvironment
from ropewalk.rl.environments.serial import SerialVectorEnvironment
from ropewalk.rl.environments.spec import ArraySpec, DiscreteAction, EnvironmentSpec
from ropewalk.rl.environments.vector import environment_spec, make_vector
from ropewalk.rl.seeds import derived_seed
from tests.rl.environments import hostile
from tests.rl.environments.hostile import Hostile, MakesHostile
from tests.rl.environments.scripted import listed

pytestmark = pytest.mark.usefixtures("shared_depot")

SHORT_S = 1.5
"""A step timeout that a loaded machine does not reach by itself, for a step that takes microseconds."""


@pytest.fixture
def made() -> Iterator[Callable[..., Any]]:
    """Makes environments, and closes them."""
    opened: list[Any] = []

    def make(factory: Any, num_envs: int | None = None, **options: Any) -> Any:
        opened.append(make_vector(factory, num_envs, 0, **options) if num_envs else factory(0))
        return opened[-1]

    yield make
    for env in opened:
        env.close()


def is_alive(pid: float) -> bool:
    return Path(f"/proc/{int(pid)}").exists()


def test_an_isolated_environment_does_what_it_does_otherwise(made: Any) -> None:
    factory = Gymnasium("CartPole-v1", max_episode_steps=12)
    plain, isolated = made(factory, 2), made(Isolated(factory), 2)
    assert isinstance(isolated, SerialVectorEnvironment) and isolated.spec == plain.spec
    shown: list[list[Any]] = [[], []]
    for envs, rows in ((plain, shown[0]), (isolated, shown[1])):
        rows.append(listed(envs.reset()))
        for action in np.random.default_rng(0).integers(0, 2, (30, 2)):
            step = envs.step(action)
            rows.append([listed(step.observation), step.reward.tolist(), step.truncated.tolist(), step.mask.tolist()])
    assert shown[0] == shown[1]


def test_the_action_may_have_any_name(made: Any) -> None:
    env = made(Isolated(hostile.make_with_another_name))
    env.reset(seed=1)
    assert env.step(2)[1] == 1


def test_each_environment_has_a_process_that_ends_with_it(made: Any) -> None:
    envs: VectorEnvironment = made(Isolated(MakesHostile(hostile.sleep, ())), 2)
    pids = [row[0] for row in listed(envs.reset())]
    assert len({*pids, os.getpid()}) == 3 and all(map(is_alive, pids))
    envs.close()
    assert not any(map(is_alive, pids))


def test_a_class_that_cannot_be_called_with_a_seed_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Hostile\(fault: .* cannot be called with one argument; give it the form"):
        Isolated(Hostile)  # type: ignore[arg-type]


def test_a_spec_is_found_without_leaving_a_process() -> None:
    factory = Isolated(MakesHostile(hostile.sleep))
    assert environment_spec(factory) == EnvironmentSpec(ArraySpec((2,), low=0), DiscreteAction(2))


FAULTS = [
    pytest.param(hostile.hang_in_c, ["took longer than 1.5 s, and its process was killed", "hang_in_c"], id="hang"),
    pytest.param(
        hostile.sleep,
        ["took longer than 1.5 s, and its process was killed", "in sleep"],
        id="sleep",
        marks=pytest.mark.soak,
    ),
    pytest.param(hostile.segfault, ["SIGSEGV (segmentation fault)", "in segfault"], id="segfault"),
    pytest.param(hostile.be_killed, ["was killed by SIGKILL"], id="kill"),
    pytest.param(hostile.leave, ["exited with code 3"], id="exit", marks=pytest.mark.soak),
]


@pytest.mark.parametrize(("fault", "told"), FAULTS)
def test_an_environment_that_is_lost_costs_one_episode(
    fault: Callable[[], None], told: list[str], made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Episode 1 of environment 0 is fatal, in its second step; the other environment does not notice."""
    fatal = derived_seed(0, "episode", 0, 0, 1)
    envs = made(Isolated(MakesHostile(fault, (fatal,)), step_timeout_s=SHORT_S), 2)
    pids = [[row[0] for row in listed(envs.reset())]]
    rows: list[Any] = []
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            step = envs.step(np.zeros(2, np.int64))
            pids.append([row[0] for row in listed(step.observation)])
            rows.append([step.observation[0, 1], step.reward[0], step.terminated[0], step.truncated[0], step.mask[0]])
    assert rows == [
        [1, 1, False, False, True],
        [2, 1, False, False, True],
        [3, 1, False, False, True],
        [4, 1, True, False, True],
        [0, 0, False, False, False],
        [1, 1, False, False, True],
        [1, 0, False, True, True],  # what was seen last, once more
        [0, 0, False, False, False],
        [1, 1, False, False, True],
        [2, 1, False, False, True],
    ]
    first, last = pids[0], pids[-1]
    assert first[0] != last[0] and first[1] == last[1], "it was not started again, or the other one was"
    assert not is_alive(first[0]) and is_alive(last[0])
    ours = [record.getMessage() for record in caplog.records if record.name == "ropewalk.rl.environments.serial"]
    assert len(ours) == 1
    for text in ["environment 0 of group 0, in its step 2 of episode 1", f"seeded with {fatal}", *told]:
        assert text in ours[0]


@pytest.mark.parametrize("fault", [pytest.param(hostile.hang_in_c, marks=pytest.mark.soak), hostile.segfault])
def test_the_error_has_the_stacks_and_the_seed(fault: Callable[[], None], made: Any) -> None:
    env: IsolatedEnvironment = made(Isolated(MakesHostile(fault), step_timeout_s=SHORT_S))
    env.reset(seed=41)
    env.step(0)
    with pytest.raises(EnvironmentLost, match=r"^step 2 of an isolated environment, .* reset\(seed=41\)") as caught:
        env.step(0)
    assert caught.value.seed == 41
    name = fault.__name__
    assert "hostile.py" in caught.value.stacks and f"in {name}\n" in caught.value.stacks
    with pytest.raises(EnvironmentLost) as again:  # it is gone, and says the same again
        env.step(0)
    assert again.value is caught.value


def test_an_environment_that_exits_is_not_told_with_the_stacks_it_does_not_have(made: Any) -> None:
    env: IsolatedEnvironment = made(Isolated(MakesHostile(hostile.leave)))
    env.reset(seed=41)
    env.step(0)
    with pytest.raises(EnvironmentLost, match="exited with code 3") as caught:
        env.step(0)
    assert "stacks" not in str(caught.value) and not caught.value.stacks


def test_an_episode_that_always_hangs_is_given_up_and_named(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    factory = Isolated(MakesHostile(hostile.sleep, in_reset=True), step_timeout_s=0.5)
    envs = made(factory, 1)
    seed = derived_seed(0, "episode", 0, 0, 0)
    with pytest.raises(EnvironmentFailed, match=f"failed 3 times in a row with the seed {seed}") as caught:
        envs.reset()
    assert caught.value.seed == seed
    assert caplog.text.count("the episode is begun again: EnvironmentLost: reset of an isolated environment") == 2


def test_a_loss_is_raised_if_that_is_asked(made: Any) -> None:
    envs = made(Isolated(MakesHostile(hostile.leave), on_error="raise"), 1)
    envs.reset()
    envs.step(np.array([0]))
    with pytest.raises(EnvironmentLost) as caught:
        envs.step(np.array([0]))
    assert "environment 0 of group 0, in its step 2 of episode 0" in caught.value.__notes__[-1]


def test_a_process_that_dies_between_two_steps_is_noticed_in_the_next(made: Any) -> None:
    env: IsolatedEnvironment = made(Isolated(MakesHostile(hostile.sleep, ())))
    env.reset(seed=1)
    env._process.kill()
    env._process.join()
    with pytest.raises(EnvironmentLost, match="step 1 of an isolated environment"):
        env.step(0)


def test_an_exception_arrives_with_its_traceback_and_the_process_goes_on(made: Any) -> None:
    env: IsolatedEnvironment = made(Isolated(MakesHostile(hostile.raise_something)))
    pid = env.reset(seed=1)[0][0]
    env.step(0)
    with pytest.raises(ZeroDivisionError, match="the ball left the table") as caught:
        env.step(0)
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "in raise_something" in str(caught.value.__cause__)
    assert env.reset(seed=1)[0][0] == pid


def test_an_exception_that_cannot_travel_arrives_as_its_text(made: Any) -> None:
    env: IsolatedEnvironment = made(Isolated(MakesHostile(hostile.raise_what_cannot_travel)))
    env.reset(seed=1)
    env.step(0)
    with pytest.raises(RemoteError, match="NotRebuildable: this and that"):
        env.step(0)


def test_an_interrupted_step_ends_the_process_so_that_no_answer_is_taken_for_another(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    env: IsolatedEnvironment = made(Isolated(MakesHostile(hostile.sleep, ())))
    pid = env.reset(seed=1)[0][0]
    with monkeypatch.context() as patched:
        patched.setattr(type(env._connection), "poll", interrupted)
        with pytest.raises(KeyboardInterrupt):
            env.step(0)
    assert not is_alive(pid)
    with pytest.raises(EnvironmentLost, match="was interrupted here"):
        env.step(0)


def interrupted(self: Any, timeout: float) -> bool:
    raise KeyboardInterrupt


def test_an_environment_that_cannot_be_made_says_why(made: Any) -> None:
    with pytest.raises(FileNotFoundError, match="no level file for the seed 0"):
        environment_spec(Isolated(hostile.cannot_be_made))


def test_a_closed_environment_has_no_process(made: Any) -> None:
    env: IsolatedEnvironment = made(Isolated(MakesHostile(hostile.sleep, ())))
    pid = env.reset(seed=1)[0][0]
    env.close()
    env.close()
    assert not is_alive(pid)
    with pytest.raises(ValueError, match="is closed; make another one"):
        env.step(0)


@pytest.mark.parametrize("make", [Gymnasium, Isolated])
def test_an_unknown_policy_for_errors_is_refused_when_it_is_set(make: Any) -> None:
    with pytest.raises(ValueError, match="on_error is 'ignore'; use one of 'raise', 'truncate'"):
        make("CartPole-v1", on_error="ignore")


@pytest.mark.parametrize("name", ["step_timeout_s", "start_timeout_s"])
def test_times_that_are_not_positive_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0; it is more than 0 seconds"):
        Isolated(MakesHostile(hostile.sleep), **{name: 0})  # pyright: ignore[reportArgumentType]


class Scores:
    """Hears what actors have seen; serves the test too."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.over = threading.Event()

    def tell(self, what: Any) -> None:
        self.told.append(what)

    def heard(self) -> list[Any]:
        return self.told

    @rw.concurrent(1)
    def wait(self) -> None:
        """Keep the actor, and with it the program, until the test has heard it."""
        self.over.wait()

    @rw.concurrent(1)
    def end(self) -> None:
        self.over.set()


def act(scores: Any, stays: bool) -> None:
    """An actor in a process of a program, whose isolated environment crashes in its first episode."""
    factory = Isolated(MakesHostile(hostile.segfault, (derived_seed(0, "episode", 0, 0, 0),)))
    envs = make_vector(factory, 1, 0)
    pids = [listed(envs.reset())[0][0]]
    truncated: list[bool] = []
    for _ in range(6):
        step = envs.step(np.zeros(1, np.int64))
        truncated.append(bool(step.truncated[0]))
        pids.append(listed(step.observation)[0][0])
    scores.tell((os.getpid(), pids, truncated))
    if stays:
        hostile.sleep()
    envs.close()
    scores.wait()


@pytest.mark.parametrize("stays", [False, True])
def test_an_actor_in_a_program_survives_its_environment_and_takes_it_along(stays: bool) -> None:
    program = rw.Program("hostile")
    scores = program.add(rw.Service(Scores))
    program.add(rw.Worker(act, scores, stays), name="actor")
    end = pytest.raises(ProgramFailed, match="SIGKILL") if stays else contextlib.nullcontext()
    with end, program.launch() as running:
        client = running.client("scores")
        while not (told := client.heard()):
            time.sleep(0.05)
        if not stays:
            client.end()
        actor, pids, truncated = told[0]
        assert truncated == [False, True, False, False, False, False]
        assert pids[0] == pids[2] != pids[-1] and len({actor, pids[0], pids[-1], os.getpid()}) == 4
        if stays:
            os.kill(actor, signal.SIGKILL)
            while is_alive(pids[-1]):  # the test's timeout ends it otherwise
                time.sleep(0.05)
            running.wait()  # the launcher may hear of the death later
    assert not is_alive(pids[-1])
