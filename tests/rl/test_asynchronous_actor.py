"""How the groups of one actor step in turn; programs of actors are tested in `test_experiment.py`."""

from __future__ import annotations

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest

from ropewalk.rl.asynchronous_actor import _CentralPolicy, _OwnPolicy, drive
from ropewalk.rl.variables import Variables
from ropewalk.transport.serialization import loads
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
    drive([group("a", 3, seen), group("b", 1, seen), group("c", 0, seen)], acting.choose)
    assert acting.together == [["a0", "b0"], ["a1"], ["a2"]]
    assert seen == ["c ended", "a0", "b0", "b ended", "a1", "a2", "a ended"]


def test_an_error_of_one_group_ends_the_others() -> None:
    acting, seen = Choosing(), list[Any]()
    with pytest.raises(ZeroDivisionError):
        drive([group("a", 9, seen), group("b", 1, seen, ZeroDivisionError())], acting.choose)
    assert seen == ["a0", "b0", "b ended", "a ended"]


class Answering:
    """A learner that gives prepared answers, and notes what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), list[Any]()

    def newest_variables(self, have: int) -> Any:
        self.asked.append(("newest", have))
        return self.answers.pop(0)

    def is_on_this_host(self) -> bool:
        return True

    def deliver(self, delivery: bytes, have: int) -> Any:
        sent = loads(delivery)
        self.asked.append((sent.insertion.sequence, sent.acknowledged, have, sorted(sent.seconds)))
        return self.answers.pop(0)


def collected(acting: _OwnPolicy, collector: Any) -> Any:
    """A block, for which nothing is asked of anybody: the policy is in the same process."""
    with pytest.raises(StopIteration) as end:
        next(acting.collect(collector, 5))
    return end.value.value


def test_an_actor_makes_one_call_for_each_block_which_takes_it_and_brings_weights() -> None:
    first, second = Variables(1, 0.0, {}), Variables(7, 0.5, {})
    learner = Answering(first, True, second, True, False, None)
    assembly = SimpleNamespace(policy=lambda _spec, _group: None)
    acting = _OwnPolicy(learner, assembly, None, 0)  # type: ignore[arg-type]
    loaded = list[Any]()
    collector = SimpleNamespace(
        load=lambda variables: loaded.append(variables.version), collect=lambda num: f"{num} steps"
    )
    acting.begin(0, 0)
    stream = acting.stream(learner)  # type: ignore[arg-type]
    wanted = list[bool]()
    for number in range(4):
        assert collected(acting, collector) == "5 steps"
        wanted.append(stream.deliver(insertion(number), (), {"env": 1.0}))
    assert wanted == [True, True, True, False]
    parts = ["env", "wait"]
    assert learner.asked == [("newest", -1), (0, 0, 1, parts), (1, 1, 1, parts), (2, 2, 7, parts), (3, 3, 7, parts)]
    assert loaded == [1, 7]
    acting.begin(0, 1)  # a new life, with new environments: there are no newer weights, and they are loaded anew
    assert collected(acting, collector) == "5 steps"
    assert learner.asked[-1] == ("newest", 7) and loaded == [1, 7, 7]


class Elsewhere(Answering):
    """A learner on another host, to which blocks travel while the next ones are collected."""

    def is_on_this_host(self) -> bool:
        return False

    @property
    def deliver(self) -> Any:  # type: ignore[override]
        def future(delivery: bytes, have: int) -> Any:
            sent = loads(delivery)
            self.asked.append((sent.insertion.sequence, sent.acknowledged, have))
            answer = self.answers.pop(0)
            return SimpleNamespace(result=lambda: self.asked.append(f"taken {sent.insertion.sequence}") or answer)

        return SimpleNamespace(future=future)


def test_to_another_host_a_block_travels_while_the_next_one_is_collected() -> None:
    learner = Elsewhere(Variables(1, 0.0, {}), Variables(7, 0.5, {}), True, False)
    acting = _OwnPolicy(learner, SimpleNamespace(policy=lambda _spec, _group: None), None, 0)  # type: ignore[arg-type]
    acting.begin(0, 0)
    stream = acting.stream(learner)  # type: ignore[arg-type]
    assert [stream.deliver(insertion(number), (), {}) for number in range(4)] == [True, True, True, False]
    # What is acknowledged is what was answered, and the weights are those of the answer to the block before.
    sent = [(0, 0, 1), "taken 0", (1, 1, 7), "taken 1", (2, 2, 7), "taken 2"]
    assert learner.asked == [("newest", -1), *sent]
    stream.settle()  # there is nothing under way
    assert learner.asked[-1] == "taken 2"


def test_an_actor_without_weights_of_its_own_has_two_blocks_under_way() -> None:
    learner = Elsewhere(True, True, True, False)
    stream = _CentralPolicy(None, 0).stream(learner)  # type: ignore[arg-type]
    assert [stream.deliver(insertion(number), (), {}) for number in range(4)] == [True] * 4
    assert learner.asked == [(0, 0, None), (1, 0, None), "taken 0", (2, 1, None), "taken 1", (3, 2, None)]
    stream.settle()
    assert learner.asked[-2:] == ["taken 2", "taken 3"]
