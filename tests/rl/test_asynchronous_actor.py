"""How the groups of one actor step in turn; programs of actors are tested in `test_experiment.py`."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ropewalk.errors import StreamLost
from ropewalk.rl.asynchronous_actor import _CentralPolicy, _OwnPolicy, drive
from ropewalk.rl.inference.remote_policy import RemotePolicy
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
    """A learner that is called without waiting for each answer."""

    def is_on_this_host(self) -> bool:
        return False

    @property
    def deliver(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(begin=lambda delivery, have: self._begun([loads(delivery)], have))

    @property
    def deliver_together(self) -> Any:
        return SimpleNamespace(begin=lambda deliveries: self._begun(loads(deliveries)))

    def _begun(self, sent: Sequence[Any], *have: int) -> Any:
        asked = self.asked
        asked += [(each.insertion.sequence, each.acknowledged, *have) for each in sent]
        answer, numbers = self.answers.pop(0), [each.insertion.sequence for each in sent]
        return SimpleNamespace(result=lambda: asked.append(f"taken {numbers}") or answer)


def test_to_another_host_a_block_travels_while_the_next_one_is_collected() -> None:
    learner = Elsewhere(Variables(1, 0.0, {}), Variables(7, 0.5, {}), True, False)
    acting = _OwnPolicy(learner, SimpleNamespace(policy=lambda _spec, _group: None), None, 0)  # type: ignore[arg-type]
    acting.begin(0, 0)
    stream = acting.stream(learner)  # type: ignore[arg-type]
    assert [stream.deliver(insertion(number), (), {}) for number in range(4)] == [True, True, True, False]
    # What is acknowledged is what was answered, and the weights are those of the answer to the block before.
    sent = [(0, 0, 1), "taken [0]", (1, 1, 7), "taken [1]", (2, 2, 7), "taken [2]"]
    assert learner.asked == [("newest", -1), *sent]
    stream.settle()  # there is nothing under way
    assert learner.asked[-1] == "taken [2]"


@pytest.fixture
def no_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemotePolicy, "act_together", staticmethod(list[Any]))


@pytest.mark.usefixtures("no_actions")
def test_blocks_that_end_at_the_same_step_travel_together_while_the_next_ones_are_collected() -> None:
    learner = Elsewhere([True, True], [True, True], [True, False])
    acting = _CentralPolicy(None, learner, 0)  # type: ignore[arg-type]
    streams = [acting.stream(learner) for _ in range(2)]  # type: ignore[arg-type]
    for number in range(3):
        assert [stream.deliver(insertion(10 * at + number), (), {}) for at, stream in enumerate(streams)] == [True] * 2
        acting.choose([])
        acting.choose([])  # of a step at which no block has ended
    sent = [(0, 0), (10, 0), "taken [0, 10]", (1, 1), (11, 1), "taken [1, 11]", (2, 2), (12, 2)]
    assert learner.asked == sent
    streams[0].settle()
    assert learner.asked[-1] == "taken [2, 12]"
    assert streams[0].deliver(insertion(3), (), {})
    assert not streams[1].deliver(insertion(13), (), {})


@pytest.mark.usefixtures("no_actions")
def test_a_stream_whose_blocks_are_lost_takes_no_other_with_it() -> None:
    lost = StreamLost("block 0 is lost", run_id="1#0", expected=0, sequence=1)
    learner = Elsewhere([True, lost], [True])
    acting = _CentralPolicy(None, learner, 0)  # type: ignore[arg-type]
    one, other = (acting.stream(learner) for _ in range(2))  # type: ignore[arg-type]
    assert one.deliver(insertion(0), (), {}) and other.deliver(insertion(1), (), {})
    acting.choose([])
    with pytest.raises(StreamLost, match="block 0 is lost"):
        other.settle()
    with pytest.raises(StreamLost, match="block 0 is lost"):
        other.deliver(insertion(2), (), {})
    assert one.deliver(insertion(3), (), {})
    one.settle()
    assert learner.asked[-2:] == [(3, 1), "taken [3]"]
