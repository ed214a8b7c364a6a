"""Depots: whom they know of, and what they do where their host has little."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import textwrap
import threading

import pytest

from ropewalk.calls.messages import CALLS, Call
from ropewalk.calls.server import CallServer
from ropewalk.sharing.depot import DEPOT_TARGET, Depot
from ropewalk.sharing.waiting_calls import DepotCaller
from ropewalk.transport.link import Link
from ropewalk.transport.loop import Loop
from ropewalk.transport.loop_with_deputies import DEPUTY_S, LoopWithDeputies
from ropewalk.transport.streams.plain import PlainStream
from tests.patience import wait_until
from tests.transport.ends import on_loop, running_loop


def test_a_call_that_outlasts_its_caller_leaves_nothing_behind() -> None:
    with running_loop() as loop:
        depot = Depot(loop, CallServer(loop))
        ours, theirs = socket.socketpair()
        link = Link(PlainStream(ours), CALLS, "worker")
        link.close()
        on_loop(loop, lambda: depot.calls.gone(link) or True)
        on_loop(loop, lambda: depot.calls.caller(link))  # as a slow `create` does at its end
        wait_until(lambda: depot.is_idle)
        theirs.close()


class Preempted(Depot):
    """Loses its core in the midst of each `lend`, until a `drop` has overtaken it, which must not be."""

    def __init__(self, loop: Loop, server: CallServer) -> None:
        self.overtaken = threading.Event()
        super().__init__(loop, server)

    def lend(self, caller: DepotCaller, target: int, ticket: int) -> None:
        self.overtaken.wait(50 * DEPUTY_S)
        super().lend(caller, target, ticket)

    def drop(self, caller: DepotCaller, target: int) -> None:
        super().drop(caller, target)
        self.overtaken.set()


def test_words_of_a_process_count_in_the_order_in_which_it_says_them_however_long_each_lasts() -> None:
    # Where many processes shared few cores, a depot was interrupted in the midst of a `lend`. A deputy took its loop
    # over, and heard the `drop` that followed: a value that a worker had just handed to the launcher was freed.
    loop = LoopWithDeputies()
    server = CallServer(loop)
    depot = Preempted(loop, server)
    loop.start("test-depot")
    ours, theirs = socket.socketpair()
    worker = Link(PlainStream(ours), CALLS, "depot")
    try:
        on_loop(loop, lambda: server.attend(Link(PlainStream(theirs), CALLS, "worker")) or True)

        def say(number: int, word: str, *args: object) -> None:
            worker.send(Call(number, DEPOT_TARGET, word, False, None, (), (), 0), (pickle.dumps(args),))

        say(1, "create", "box")
        answer = worker.receive()
        assert answer
        _, (target,), *_ = pickle.loads(answer.parts[0])
        say(2, "lend", target, 7)
        say(3, "drop", target)
        numbers = [received.message.number for received in (worker.receive(), worker.receive()) if received]
        assert numbers == [2, 3]
        assert set(depot.stored[target].kept.lent) == {7}, "it is under way to the launcher"
    finally:
        worker.close()
        loop.stop()
        assert loop.ended.wait(120)


def test_large_items_may_be_more_than_there_are_descriptors() -> None:
    script = """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        import ropewalk
        items = ropewalk.Queue()
        for number in range(300):
            items.put(bytes([number % 256]) * 600_000)
        print(items.qsize(), all(items.get()[0] == number % 256 for number in range(300)))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stdout == "300 True\n", done.stderr


@pytest.mark.parametrize(
    ("peer", "says", "shown"),
    [
        ("pool-1.3#88-4", "pool-1.3 (pid 12 on n2)", "pool-1.3 (pid 12 on n2)"),
        ("launcher", "the launcher (pid 7 on n1)", "the launcher (pid 7 on n1)"),
        ("odd#name.0#88-4", "odd#name.0 (pid 12 on n2)", "odd#name.0 (pid 12 on n2)"),
        ("pool-1.3#88-4", "pool-1.4 (pid 12 on n2)", "pool-1.3"),
        ("pool-1.3#88-4", "the launcher (pid 7 on n1)", "pool-1.3"),
        ("pool-1.3#88-4", "pool-1.33 (pid 12 on n2)", "pool-1.3"),
        ("pool-1.3#88-4", "pool-1.3 (\n[pool-1 4@n2] \x9b2J", "pool-1.3 (\\n[pool-1 4@n2] \\x9b2J"),
        ("pool-1.3#88-4", "pool-1.3 " + "x" * 1000, "pool-1.3 " + "x" * 191),
    ],
)
def test_a_process_is_shown_under_its_own_name_whatever_it_calls_itself(peer: str, says: str, shown: str) -> None:
    """S32: errors of others say who held a pipe last, or a lock."""
    with running_loop() as loop:
        desk = Depot(loop, CallServer(loop)).calls
        ours, theirs = socket.socketpair()
        link = Link(PlainStream(ours), CALLS, peer)
        caller = on_loop(loop, lambda: desk.caller(link))
        for name in (says, "pool-1.4 (pid 12 on n2)"):
            caller.rename(name)
        assert caller.party.name == shown
        link.close()
        theirs.close()
