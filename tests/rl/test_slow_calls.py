"""What a run says while a call of an environment does not return: which one, for how long, and no old verdict."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import ropewalk as rw
from ropewalk import rl
from ropewalk.rl import in_process
from ropewalk.rl.environments.gymnasium_vector import GymnasiumVectorEnvironment
from ropewalk.rl.environments.serial import EPISODES_OF_A_LIFE, SerialVectorEnvironment
from ropewalk.rl.logs.where_time_goes import TimeShares
from ropewalk.rl.seeds import derived_seed
from ropewalk.rl.slow_calls import CallWatch, SlowCall, SlowCalls, slow_in_words
from ropewalk.rl.standstill import TrainingStandstill
from tests.rl.faulty import cartpole, node_is

CALL = "step 7 of environment 0 of group 2, episode seed 9"
SLOW = SlowCall("actor 2", CALL, 14.0)


def test_a_call_is_slow_from_when_it_was_seen_first_until_another_one_is() -> None:
    watch = CallWatch("actor 2", slow_s=3)
    looks = [watch.look(float(now), {2: CALL, 5: ""}) for now in range(5)]
    assert looks == [[], [], [], [SlowCall("actor 2", CALL, 3.0)], [SlowCall("actor 2", CALL, 4.0)]]
    assert watch.look(5.0, {2: "step 8 of environment 0 of group 2, episode seed 9"}) == []
    assert watch.look(6.0, {2: CALL}) == [], "this is another call"


def test_what_an_actor_does_not_say_again_is_forgotten() -> None:
    calls = SlowCalls()
    calls.note(SLOW, now=100.0)
    calls.note(SlowCall("actor 0", "reset of environment 1 of group 0, episode seed 3", 60.0), now=100.0)
    assert [(each.caller, round(each.seconds)) for each in calls.at(101.0)] == [("actor 0", 61), ("actor 2", 15)]
    calls.note(SlowCall("actor 2", CALL, 17.0), now=103.0)
    assert calls.at(104.0) == (SlowCall("actor 2", CALL, 18.0),), "actor 0 died, or its call has returned"


def test_a_verdict_goes_when_nothing_moves_and_a_slow_call_is_named() -> None:
    standstill = TrainingStandstill()
    verdict = "actor-bound: the learner waits 80 %"
    for now, steps in ((0.0, 0), (1.0, 64), (2.0, 128)):
        standstill.look(now, steps, 0)
        assert standstill.limit(now, verdict) == verdict
    named = f"actor 2 has not answered for 14 s in {CALL}"
    assert standstill.limit(3.0, verdict, slow=[SLOW]) == f"{named}; {verdict}", "others go on"
    assert standstill.limit(16.0, verdict, slow=[SLOW]) == named
    waits_for = "group 2 of environments (actor 2#0)"
    assert standstill.limit(16.0, verdict, waits_for) == f"no steps for 14 s, the learner waits for {waits_for}"
    standstill.look(17.0, 192, 0)
    assert standstill.limit(17.0, verdict) == verdict
    assert standstill.limit(40.0, verdict) == verdict, "a pause of 15 s is usual here"
    assert standstill.limit(46.9, verdict) == verdict
    assert standstill.limit(47.0, verdict) == "no steps for 30 s"


def test_many_slow_calls_are_one_and_a_number() -> None:
    several = [SlowCall(f"actor {actor}", CALL, 20.0 - actor) for actor in range(64)]
    assert slow_in_words(several) == f"actor 0 has not answered for 20 s in {CALL}, and 63 other calls likewise"
    assert slow_in_words(several[:2]).endswith(f"{CALL}, and 1 other call likewise")
    assert (slow_in_words(several[:1]), slow_in_words([])) == (several[0].in_words(), "")


def test_the_alarm_names_the_call_too() -> None:
    standstill = TrainingStandstill(patience_s=30)
    standstill.look(0.0, 1, 0)
    (words,) = standstill.look(30.0, 1, 0, slow=[SlowCall("", CALL, 29.9)])
    assert words.startswith(f"no environment steps have been made for 30 s; {CALL}, has not returned for 30 s. An")


def test_the_wait_that_goes_on_counts_in_the_verdict() -> None:
    times = TimeShares()
    times.learner.update(update=8.0, wait=2.0)
    times.add_actor({"env": 6.0, "wait": 4.0})
    assert times.limit() == "learner-bound: actors wait 40 %"
    assert times.limit(10.0).startswith("actor-bound: the learner waits 60 %")


def test_environments_say_which_call_is_under_way() -> None:
    calls: list[str] = []
    environment: Any = None

    def note() -> None:
        calls.append(environment.call_under_way())

    environment = SerialVectorEnvironment(lambda seed: cartpole(note), 2, seed=3, group=1)
    assert environment.call_under_way() == ""
    environment.reset()
    environment.step(np.array([0, 1]))
    seeds = [derived_seed(3, "episode", 1, env, 0) for env in range(2)]
    assert calls == [f"step 1 of environment {env}, episode seed {seeds[env]}" for env in range(2)]
    assert environment.call_under_way() == ""
    environment.close()
    envs = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
    several = GymnasiumVectorEnvironment(envs, seed=5)
    stepped = envs.step
    envs.step = lambda actions: (calls.append(several.call_under_way()), stepped(actions))[1]  # type: ignore[method-assign]
    several.reset()
    several.step(np.array([0, 1]))
    assert (calls[-1], several.call_under_way()) == ("step 1 of the vector environment, seed 5", "")
    several.close()


@dataclass(frozen=True)
class HangsWhileGated:
    """CartPole whose twentieth step in a process does not return while a file is there."""

    gate: str
    node: str = "actors"
    replica: int = 1

    def __call__(self, seed: int) -> Any:
        number = 0

        def before() -> None:
            nonlocal number
            number += 1
            while number >= 20 and node_is(self.node, self.replica) and os.path.exists(self.gate) and not rw.stopping():
                time.sleep(0.01)
            time.sleep(0.005)  # while one hangs, the others would train for seconds at the speed of all cores

        return cartpole(before)


class Enough(BaseException):
    """Ends a run from its logger."""


class Hangs(gymnasium.Env[Any, Any]):
    """Its twentieth step does not return before a line of progress has named it."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, step: int) -> None:
        self.step_that_hangs, self.num_steps = step, 0
        self.named = threading.Event()

    def reset(self, **options: Any) -> Any:
        if self.step_that_hangs == 0:
            assert self.named.wait(100)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        if self.num_steps == self.step_that_hangs:
            assert self.named.wait(100)
        return np.zeros(2, np.float32), 0.0, self.num_steps % 15 == 0, False, {}


@pytest.mark.parametrize(("step", "call"), [(20, "step 5"), (0, "reset")])
@pytest.mark.parametrize("ends", [False, True])
def test_one_process_names_the_call_while_it_lasts(
    step: int, call: str, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its progress is told by the thread that waits in the environment; so another one has to tell it."""
    monkeypatch.setattr(in_process, "CallWatch", functools.partial(CallWatch, slow_s=1e-3))
    told: list[tuple[Any, str]] = []
    file = io.StringIO()
    terminal = rl.TerminalLogger(0.0, file)

    def log(label: str, row: Any) -> None:
        terminal(label, row)
        if "has not returned for" in (bound := str(row["bound"])):
            told.append((row["steps"], bound))
            hanging.named.set()
            if ends:
                raise Enough

    hanging = Hangs(step)
    experiment = rl.Experiment(rl.A2C(unroll=8, envs=1), lambda seed: hanging, rl.MLP((4,)), steps=32)
    with pytest.raises(Enough) if ends else contextlib.nullcontext():
        assert experiment.run(log=log).counters.steps >= 32
    steps, bound = told[0]
    episode = derived_seed(0, "episode", 0, 0, 1 if step else 0)
    assert bound.startswith(f"{call} of environment 0 of group 0, episode seed {episode}, has not returned for ")
    assert steps == (15 if step else 0), "of the blocks before"
    assert bound in file.getvalue()


def test_one_process_names_a_call_of_an_evaluation_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It once said nothing: an evaluation has environments of its own, at which nobody looked."""
    monkeypatch.setattr(in_process, "CallWatch", functools.partial(CallWatch, slow_s=1e-3))
    told: list[str] = []

    def log(label: str, row: Any) -> None:
        if "has not returned for" in (bound := str(row.get("bound"))):
            told.append(bound)
            hanging.named.set()

    trained, hanging = Hangs(-1), Hangs(20)
    experiment = rl.Experiment(
        rl.A2C(unroll=8, envs=1),
        lambda seed: hanging if trained.num_steps else trained,
        rl.MLP((4,)),
        steps=32,
        evaluation=rl.Evaluation(every_steps=32, episodes=2),
    )
    assert experiment.run(log=log).evaluations[0].scores == (0.0, 0.0)
    episode = derived_seed(derived_seed(derived_seed(0, "evaluation"), "evaluation"), "episode", 0, 0, 1)
    assert told[0].startswith(
        f"step 5 of environment 0 of an evaluation, episode seed {episode}, has not returned for "
    )


@pytest.mark.usefixtures("shared_session")
def test_the_line_of_progress_names_an_evaluator(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    told: list[str] = []

    def log(label: str, row: Any) -> None:
        bound = str(row.get("bound") or "")
        if bound.startswith("evaluator 0 has not answered for"):
            told.append(bound)
            gate.unlink(missing_ok=True)
        elif label == "evaluation" and told:
            raise Enough

    experiment = rl.Experiment(
        rl.IMPALA(unroll=8, envs=2, batch_size=2),
        HangsWhileGated(str(gate), "evaluators", 0),
        rl.MLP((4,)),
        steps=100_000_000,
        evaluation=rl.Evaluation(every_steps=16, episodes=1),
    )
    with pytest.raises(Enough):
        experiment.run(2, log=log)
    assert re.match(
        r"evaluator 0 has not answered for \d+ s in step \d+ of environment 0 of an evaluation, episode seed \d+; \w+",
        told[0],
    ), "training goes on, with its own verdict"


@pytest.mark.usefixtures("shared_session")
@pytest.mark.parametrize("mode", ["lockstep", pytest.param("async", marks=pytest.mark.soak)])
def test_the_line_of_progress_names_the_actor_the_call_and_its_episode(mode: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    told: list[str] = []

    def log(label: str, row: Any) -> None:
        bound = str(row.get("bound") or "")
        if bound.startswith("actor 1 has not answered for"):
            told.append(bound)
            gate.unlink(missing_ok=True)
        elif told and "actor 1" not in bound:
            raise Enough

    agent = rl.IMPALA(unroll=8, envs=2, batch_size=2)
    experiment = rl.Experiment(agent, HangsWhileGated(str(gate)), rl.MLP((4,)), steps=100_000_000, seed=3)
    with pytest.raises(Enough):
        experiment.run(2, mode=mode, log=log)
    found = re.match(
        r"actor 1 has not answered for \d+ s in step \d+ of environment (\d) of group (\d), episode seed (\d+)", told[0]
    )
    assert found, told
    env, group, seed = map(int, found.groups())
    episodes = [life * EPISODES_OF_A_LIFE + number for life in range(3) for number in range(20)]
    assert seed in [derived_seed(3, "episode", group, env, episode) for episode in episodes]
