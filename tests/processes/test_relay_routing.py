"""Who may say where two sides meet; that they do meet is shown on machines (scenarios/test_hosts_ways.py)."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from ropewalk.engines.resources import Resources
from ropewalk.processes.agent_record import AgentRecord
from ropewalk.processes.messages import MeetAt, NeedWay, OpenRelay, RelayAt
from ropewalk.processes.relay_routing import RelayRouter
from ropewalk.processes.sizing import Share
from ropewalk.supervision.liveness import Lease
from ropewalk.transport.credentials import Credentials


class Told:
    """A link that notes what is sent."""

    def __init__(self) -> None:
        self.messages: list[msgspec.Struct] = []

    def send(self, message: msgspec.Struct) -> None:
        self.messages.append(message)

    send_if_open = send


def agent(name: str) -> AgentRecord:
    made = AgentRecord(name, Share(None, Resources()), Lease(1e9, time.monotonic()), Credentials.create("run", name))
    made.link, made.pid, made.ip = cast(Any, Told()), 1, f"10.0.0.{name[-1]}"
    return made


def told(agent: AgentRecord) -> list[msgspec.Struct]:
    return cast(Told, agent.link).messages


def test_only_the_agent_that_was_asked_says_where_two_sides_meet_and_that_they_have() -> None:
    """Any other one that knew the ticket could send both to a place of its own, or have a way counted as working."""
    source, target, relay, other = (agent(f"agent-{number}") for number in range(4))
    fleet = SimpleNamespace(agents={each.id: each for each in (source, target, relay, other)})
    loop = SimpleNamespace(call_later=lambda *_: None)
    events: list[str] = []
    ways = RelayRouter(cast(Any, fleet), cast(Any, loop), cast(Any, None), "", events.append)
    ticket, to = "t" * 64, "at:agent-1|unix:/there"
    ways.need(source, NeedWay(ticket, to))
    assert told(relay) == [OpenRelay(ticket)]
    for liar in (source, target, other, None):
        ways.relay_at(liar, RelayAt(ticket, "10.6.6.6", 666))
    ways.met(other, ticket)
    assert told(source) == told(target) == [] and ways.known() == [] and events == []
    ways.relay_at(relay, RelayAt(ticket, "10.0.0.2", 4711))
    assert told(source) == [MeetAt(ticket, "10.0.0.2", 4711, "")]
    assert told(target) == [MeetAt(ticket, "10.0.0.2", 4711, to)]
    ways.met(relay, ticket)
    assert len(ways.known()) == 1 and len(events) == 1


def test_a_lost_agent_has_no_ways_any_more() -> None:
    source, target, relay = (agent(f"agent-{number}") for number in range(3))
    fleet = SimpleNamespace(agents={each.id: each for each in (source, target, relay)})
    loop = SimpleNamespace(call_later=lambda *_: None)
    ways = RelayRouter(cast(Any, fleet), cast(Any, loop), cast(Any, None), "", lambda _: None)
    for lost in (source, target, relay):
        ticket = f"{lost.id:t<64}"
        ways.need(source, NeedWay(ticket, "at:agent-1|unix:/there"))
        ways.lost(lost)
        ways.relay_at(relay, RelayAt(ticket, "10.0.0.2", 4711))
        ways.met(relay, ticket)
        assert told(source) == told(target) == [] and ways.known() == []
