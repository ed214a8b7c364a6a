"""How the groups of one actor step in turn; programs of actors are tested in `test_experiment.py`."""

from __future__ import annotations

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest

from ropewalk.rl import asynchronous_actor
from ropewalk.rl.asynchronous_actor import _AnsweredStream, _OwnPolicy, drive
from ropewalk.rl.variables import Variables
from tests.rl.replay.stand_in import insertion


class Choosing:
    """Answers each request with it, and notes which came together."""

    def __init__(self) -> None:
        self.together: list[list[Any]] = []

    def choose(self, requests: Any) -> Any:
        self.together.append(list(requests))
        return list(requests)


def group(name: str, num: int, seen: list[Any], error: Exception | None = None) -> Generator[Any, Any, None]:
    try:
        for number in range(num):
            choice, seconds = yield f"{name}{number}"
            assert seconds >= 0
            seen.append(choice)
        if error:
            raise error
    finally:
        seen.append(f"{name} ended")


def test_groups_ask_together_until_each_has_ended() -> None:
    acting, seen = Choosing(), list[Any]()
    drive([group("a", 3, seen), group("b", 1, seen), group("c", 0, seen)], acting)  # type: ignore[arg-type]
    assert acting.together == [["a0", "b0"], ["a1"], ["a2"]]
    assert seen == ["c ended", "a0", "b0", "b ended", "a1", "a2", "a ended"]


def test_an_error_of_one_group_ends_the_others() -> None:
    acting, seen = Choosing(), list[Any]()
    with pytest.raises(ZeroDivisionError):
        drive([group("a", 9, seen), group("b", 1, seen, ZeroDivisionError())], acting)  # type: ignore[arg-type]
    assert seen == ["a0", "b0", "b ended", "a ended"]


class Answering:
    """A learner that gives prepared answers, and notes what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), list[Any]()

    def newest_variables(self, have: int) -> Any:
        self.asked.append(("newest", have))
        return self.answers.pop(0)

    def deliver(self, delivery: Any, have: int) -> Any:
        self.asked.append((delivery.insertion.sequence, delivery.acknowledged, have, sorted(delivery.seconds)))
        return self.answers.pop(0)


def test_an_actor_makes_one_call_for_each_block_which_takes_it_and_brings_weights() -> None:
    first, second = Variables(1, 0.0, {}), Variables(7, 0.5, {})
    learner = Answering(first, True, second, True, False, None)
    assembly = SimpleNamespace(policy=lambda _spec, _group: None)
    acting = _OwnPolicy(learner, assembly, None, 0)  # type: ignore[arg-type]
    loaded = list[Any]()
    collector = SimpleNamespace(load=lambda variables: loaded.append(variables.version), steps=lambda _num: None)
    acting.begin(0, 0)
    stream = acting.stream(learner)  # type: ignore[arg-type]
    assert isinstance(stream, _AnsweredStream)
    wanted = list[bool]()
    for number in range(4):
        acting.collect(collector, 5)  # type: ignore[arg-type]
        wanted.append(stream.deliver(insertion(number), (), {"env": 1.0}))
    assert wanted == [True, True, True, False]
    parts = ["env", "wait"]
    assert learner.asked == [("newest", -1), (0, 0, 1, parts), (1, 1, 1, parts), (2, 2, 7, parts), (3, 3, 7, parts)]
    assert loaded == [1, 7]
    acting.begin(0, 1)  # a new life, with new environments: there are no newer weights, and they are loaded anew
    acting.collect(collector, 5)  # type: ignore[arg-type]
    assert learner.asked[-1] == ("newest", 7) and loaded == [1, 7, 7]


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Slow:
    """A learner whose answers take as long as it is told, and which notes for which ones an actor waited."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.answer_s, self.asked = clock, 0.0, list[str]()
        self.deliver = SlowDeliver(self)


class SlowDeliver:
    def __init__(self, learner: Slow) -> None:
        self.learner = learner

    def __call__(self, delivery: Any, have: int) -> Any:
        self.learner.asked.append(f"{delivery.insertion.sequence} waits with {have}")
        self.learner.clock.now += self.learner.answer_s
        return Variables(delivery.insertion.sequence, 0.0, {})

    def future(self, delivery: Any, have: int) -> Any:
        self.learner.asked.append(f"{delivery.insertion.sequence} ahead with {have}")

        def result() -> Any:
            self.learner.clock.now += self.learner.answer_s
            return Variables(delivery.insertion.sequence, 0.0, {})

        return SimpleNamespace(result=result)


def test_where_answers_take_long_the_next_block_is_collected_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(asynchronous_actor, "time", clock)
    learner = Slow(clock)
    acting = _OwnPolicy(learner, SimpleNamespace(policy=lambda _spec, _group: None), None, 0)  # type: ignore[arg-type]
    stream = acting.stream(learner)  # type: ignore[arg-type]

    def deliver(*numbers: int) -> list[str]:
        learner.asked.clear()
        for number in numbers:
            clock.now += 1.0  # collecting
            assert stream.deliver(insertion(number), (), {})
        return learner.asked

    learner.answer_s = 0.2
    assert deliver(0, 1) == ["0 waits with -1", "1 waits with 0"]
    learner.answer_s = 0.3
    # The weights of a block that is collected ahead are those that came with the answer before.
    assert deliver(2, 3, 4) == ["2 waits with 1", "3 ahead with 2", "4 ahead with 3"]
    assert len([asked for asked in deliver(*range(5, 35)) if "ahead" in asked]) == 30
    assert deliver(35, 36) == ["35 waits with 34", "36 ahead with 35"]  # it tries whether answers still take long
    learner.answer_s = 0.1
    assert deliver(*range(37, 68))[-1] == "67 ahead with 66"
    assert deliver(68, 69) == ["68 waits with 67", "69 waits with 68"]
    stream.settle()


def test_an_answer_under_way_that_wants_no_more_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(asynchronous_actor, "time", clock)
    learner = Slow(clock)
    learner.answer_s = 1.0
    acting = _OwnPolicy(learner, SimpleNamespace(policy=lambda _spec, _group: None), None, 0)  # type: ignore[arg-type]
    stream = acting.stream(learner)  # type: ignore[arg-type]
    assert stream.deliver(insertion(0), (), {})
    learner.deliver.future = lambda _delivery, _have: SimpleNamespace(result=lambda: False)  # type: ignore[method-assign]
    assert stream.deliver(insertion(1), (), {})
    assert not stream.deliver(insertion(2), (), {})
    assert learner.asked == ["0 waits with -1"]
