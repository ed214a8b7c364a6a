"""An agent reads record pipes in batches, under the names that the receivers know, and not ahead of them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from ropewalk.processes.hosted_process import HostedProcess
from ropewalk.processes.messages import Records, RecordsFlushed
from ropewalk.processes.record_forwarder import RecordForwarder
from tests.processes.pretend_loop import START, PretendLink, PretendLoop


class PretendAgent:
    """Hosts processes that do nothing: the test writes to their pipes."""

    def __init__(self) -> None:
        self.loop: Any = PretendLoop()
        self.processes: dict[str, HostedProcess] = {}
        self.forwarder = RecordForwarder(self.loop, self.processes)
        self.launcher: Any = PretendLink("launcher")

    def host(self, id: str, owner: Any = None, *, keeps: bool = False) -> HostedProcess:
        start = msgspec.structs.replace(START, id=id, keeps_records=keeps)
        self.processes[id] = process = HostedProcess(start, owner or self.launcher, None)
        self.forwarder.begin(process)
        return process

    def readable(self, process: HostedProcess) -> None:
        self.loop.watched[process.records]()

    def close(self) -> None:
        for process in self.processes.values():
            process.close()


@pytest.fixture
def agent() -> Iterator[PretendAgent]:
    agent = PretendAgent()
    yield agent
    agent.close()


def write(process: HostedProcess, data: bytes) -> None:
    os.write(process.child_fds()[3], data)


def test_what_comes_after_a_pause_is_sent_at_once_and_what_follows_after_20_ms(agent: PretendAgent) -> None:
    process = agent.host("a")
    write(process, b"one")
    agent.readable(process)
    write(process, b"two")
    write(process, b"three")
    assert process.records not in agent.loop.watched, "each record would wake the agent"
    assert [delay_s for delay_s, _ in agent.loop.later] == [0.02]
    agent.loop.pause()
    agent.readable(process)
    assert agent.launcher.sent == [Records("a", "a", b"one"), Records("a", "a", b"twothree")]


def test_a_pipe_that_fills_is_enlarged_and_others_are_not(agent: PretendAgent) -> None:
    busy, calm = agent.host("a"), agent.host("b")
    write(busy, bytes(40_000))
    write(calm, bytes(4_000))
    for process in (busy, calm):
        agent.readable(process)
    capacities = [fcntl.fcntl(process.records, fcntl.F_GETPIPE_SZ) for process in (busy, calm)]
    assert capacities[0] > capacities[1]


def test_a_process_that_has_closed_its_pipe_wakes_nobody(agent: PretendAgent) -> None:
    process = agent.host("a")
    process.close_child_fds()
    agent.readable(process)
    agent.loop.pause()
    assert agent.loop.watched == {} and agent.launcher.sent == []


def test_a_pipe_that_a_session_has_had_emptied_in_the_same_turn_is_read_again(agent: PretendAgent) -> None:
    # It was taken for one that its process has closed: what came later stayed there, and a process whose pipe was full
    # waited for ever. A run that ends has all pipes of its session read, those of other runs too.
    process = agent.host("a")
    write(process, b"one")
    readable = agent.loop.watched[process.records]  # the loop has both events, and that of the session is the first
    agent.forwarder.flush(agent.launcher, 1)
    readable()
    agent.loop.pause()
    write(process, b"two")
    agent.readable(process)
    assert agent.launcher.sent == [Records("a", "a", b"one"), RecordsFlushed(1), Records("a", "a", b"two")]


def test_what_a_process_left_in_its_pipe_is_sent_at_its_end_and_marked_as_the_last(agent: PretendAgent) -> None:
    process, silent = agent.host("a"), agent.host("b")
    write(process, b"one")
    agent.readable(process)
    write(process, b"two")
    for each in (process, silent):
        agent.forwarder.finish(each)
        agent.forwarder.finish(each)
    agent.loop.pause()
    assert agent.loop.watched == {}
    assert agent.launcher.sent == [
        Records("a", "a", b"one"),
        Records("a", "a", b"two"),
        Records("a", "a", b"", is_last=True),
    ]


def test_what_a_process_of_a_process_writes_goes_to_the_session_that_knows_its_ancestor(agent: PretendAgent) -> None:
    worker = agent.host("worker")
    link: Any = PretendLink("worker")
    guest = agent.host("guest", link)
    guest_of_guest = agent.host("guest of guest", PretendLink("guest"))
    kept = agent.host("kept", link, keeps=True)
    for process in (guest, guest_of_guest, kept):
        write(process, process.start.id.encode())
    agent.forwarder.finish(worker)  # it was killed: what those that end with it have written is not lost
    agent.readable(kept)
    assert sorted((each.id, each.source, each.data) for each in agent.launcher.sent if not each.is_last) == [
        ("worker", "guest", b"guest"),
        ("worker", "guest of guest", b"guest of guest"),
    ]
    assert link.sent == [Records("kept", "kept", b"kept")]
    assert {each.source for each in agent.launcher.sent if each.is_last} == {"guest", "guest of guest"}


def test_pipes_are_not_read_while_too_much_is_in_transit_to_their_session(agent: PretendAgent) -> None:
    process, link = agent.host("a"), PretendLink("b")
    agent.host("b")
    other = agent.host("c", link, keeps=True)
    for _ in range(28):
        write(process, bytes(40_000))
        if process.records in agent.loop.watched:
            agent.readable(process)
            agent.loop.pause()
    sent = sum(len(each.data) for each in agent.launcher.sent)
    assert 1 << 20 < sent < (1 << 20) + 100_000 and process.records not in agent.loop.watched
    write(other, b"of another session")
    agent.readable(other)
    assert link.sent
    agent.forwarder.seen(agent.launcher, 1000)
    assert process.records not in agent.loop.watched
    agent.forwarder.seen(agent.launcher, 600_000)
    agent.readable(process)
    assert sum(len(each.data) for each in agent.launcher.sent) == 28 * 40_000


def test_a_session_gets_what_its_processes_have_written_and_then_the_number_of_its_request(agent: PretendAgent) -> None:
    process, link = agent.host("a"), PretendLink("b")
    agent.host("b")
    other = agent.host("c", link, keeps=True)
    for each in (process, other):
        write(each, b"first")
        agent.readable(each)  # now there is a pause in reading
        write(each, b"second")
    sent = list(link.sent)
    agent.forwarder.flush(agent.launcher, 7)
    assert agent.launcher.sent == [Records("a", "a", b"first"), Records("a", "a", b"second"), RecordsFlushed(7)]
    assert link.sent == sent, "those of another session are not concerned"
