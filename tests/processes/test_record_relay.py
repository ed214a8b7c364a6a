"""A session waits until its agents have sent what processes have written, and no longer than it may."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ropewalk.errors import LinkClosed
from ropewalk.processes.messages import FlushRecords
from ropewalk.processes.record_relay import RecordRelay


class PretendAgent:
    """Does something when it is asked for records."""

    def __init__(self, asked: Callable[[PretendAgent, int], object]) -> None:
        self.asked = asked
        self.link: Any = SimpleNamespace(send=self._send)

    def _send(self, message: FlushRecords) -> None:
        self.asked(self, message.number)


def relay_of(*answers: Callable[[PretendAgent, int], object]) -> RecordRelay:
    agents: list[Any] = [PretendAgent(answer) for answer in answers]
    return RecordRelay(lambda: agents)


def fail(agent: PretendAgent, number: int) -> None:
    raise LinkClosed("the agent is gone")


def test_it_waits_until_every_agent_has_answered() -> None:
    relay = relay_of(
        lambda agent, number: relay.flushed(agent, number),  # type: ignore[arg-type]
        lambda agent, number: relay.flushed(agent, number),  # type: ignore[arg-type]
    )
    assert relay.settle(60)
    assert relay_of().settle(60)


@pytest.mark.parametrize("loses", [lambda agent, _: setattr(agent, "link", None), fail])
def test_it_does_not_wait_for_an_agent_that_is_lost(loses: Callable[[PretendAgent, int], object]) -> None:
    relay_of(loses).settle(1e9)


def test_it_gives_up_an_agent_that_does_not_answer_in_time_and_ignores_its_late_answer() -> None:
    late: list[tuple[Any, int]] = []
    relay = relay_of(lambda agent, number: late.append((agent, number)))
    assert not relay.settle(0.01)
    for agent, number in late:
        relay.flushed(agent, number)
