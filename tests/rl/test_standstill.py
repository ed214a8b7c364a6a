"""A standstill is told once, with what the learner waits for; slow blocks are none."""

from __future__ import annotations

import functools
import logging
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest

from ropewalk import rl
from ropewalk.rl import in_process
from ropewalk.rl.rounds import RoundBook
from ropewalk.rl.standstill import TrainingStandstill, watched


def told(standstill: TrainingStandstill, looks: dict[float, int], waits_for: str = "") -> dict[float, list[str]]:
    """Return what is said at each time, of those at which something is; by time, the steps."""
    said = {now: standstill.look(now, steps, 0, waits_for=waits_for) for now, steps in looks.items()}
    return {now: words for now, words in said.items() if words}


def test_a_standstill_is_told_once_and_the_next_one_again() -> None:
    standstill = TrainingStandstill(block_steps=64, patience_s=30)
    looks = {0.0: 0, 1.0: 64, 30.0: 64, 31.0: 64, 90.0: 64, 91.0: 128, 120.0: 128, 121.0: 128}
    said = told(standstill, looks, "group 1 of environments (actor 1#0)")
    assert list(said) == [31.0, 121.0]
    assert said[31.0][0].startswith(
        "no environment steps have been made for 30 s (they come in blocks of 64), and the learner waits for group 1 "
        "of environments (actor 1#0). An environment may hang in step or reset"
    )


@pytest.mark.parametrize("steps_each", [0, 1])
def test_updates_are_no_standstill(steps_each: int) -> None:
    standstill = TrainingStandstill(patience_s=30)
    assert not any(standstill.look(10.0 * number, steps_each * number, number) for number in range(10))


def test_steps_that_are_counted_one_by_one_come_in_no_blocks() -> None:
    ((words,),) = told(TrainingStandstill(patience_s=30), {0.0: 1, 30.0: 1}).values()
    assert words.startswith("no environment steps have been made for 30 s. An environment may hang")


def test_blocks_that_always_take_long_are_no_standstill() -> None:
    standstill = TrainingStandstill(patience_s=30)
    slow = {25.0 * number: number for number in range(5)}  # a block in 25 s
    assert told(standstill, slow) == {}
    assert told(standstill, {200.0: 4}) == {}
    assert list(told(standstill, {225.0: 4})) == [225.0], "this one takes five times as long"


def test_a_group_that_delivers_nothing_while_others_do_is_told_once() -> None:
    standstill = TrainingStandstill(patience_s=30)
    said = [
        (now, words)
        for now in range(100)
        for words in standstill.look(float(now), now, 0, blocks={0: now, 1: min(now, 4)})
    ]
    ((now, words),) = said
    assert now == 34 and words.startswith("the actor of group 1 has delivered nothing for 30 s, while others did.")


def test_a_thread_looks_until_the_block_ends() -> None:
    looked = threading.Event()
    with watched(looked.set):
        assert looked.wait(60)
    assert "standstill" not in {thread.name for thread in threading.enumerate()}


class Hangs(gymnasium.Env[Any, Any]):
    """Its twentieth step lasts until a standstill has been told."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    told = threading.Event()

    def __init__(self) -> None:
        self.num_steps = 0

    def reset(self, **options: Any) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        if self.num_steps == 20:
            assert self.told.wait(100)
        return np.zeros(2, np.float32), 0.0, self.num_steps % 10 == 0, False, {}


def test_a_run_in_one_process_tells_that_a_step_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("no environment steps have been made for "):
                Hangs.told.set()

    monkeypatch.setattr(in_process, "TrainingStandstill", functools.partial(TrainingStandstill, patience_s=1e-3))
    handler = Listening()
    in_process.logger.addHandler(handler)
    try:
        experiment = rl.Experiment(rl.A2C(unroll=8, envs=1), lambda seed: Hangs(), rl.MLP((4,)), steps=32)
        assert experiment.run(log="silent").counters.steps >= 32
    finally:
        in_process.logger.removeHandler(handler)
    assert Hangs.told.is_set()


def test_the_learner_in_lock_step_knows_for_whom_it_waits() -> None:
    book = RoundBook(groups=2)
    assert book.ask("0#0", (), 0.0) and book.ask("1#0", (), 0.0)
    assert book.given() == {0: ["0#0"], 1: ["1#0"]}
    book.deliver(0, 0, 1.0)
    assert book.given() == {1: ["1#0"]} and book.missing == [1]
