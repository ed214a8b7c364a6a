"""Depots: whom they know of, and what they do where their host has little."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap

from ropewalk.calls.messages import CALLS
from ropewalk.calls.server import CallServer
from ropewalk.sharing.depot import Depot
from ropewalk.transport.link import Link
from ropewalk.transport.streams.plain import PlainStream
from tests.scenarios.tasks import wait_until
from tests.transport.ends import on_loop, running_loop


def test_a_call_that_outlasts_its_caller_leaves_nothing_behind() -> None:
    with running_loop() as loop:
        depot = Depot(loop, CallServer(loop))
        ours, theirs = socket.socketpair()
        link = Link(PlainStream(ours), CALLS, "worker")
        link.close()
        on_loop(loop, lambda: depot.desk.gone(link) or True)
        on_loop(loop, lambda: depot.desk.caller(link))  # as a slow `create` does at its end
        wait_until(lambda: depot.is_idle)
        theirs.close()


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
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.stdout == "300 True\n", done.stderr
