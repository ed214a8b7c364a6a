"""The entry of a process in which one unit runs: connect to the launcher, unpickle the nodes, run them, end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from ropewalk.errors import LinkClosed
from ropewalk.processes.bootstrap import ProcessContext
from ropewalk.processes.host_memory import parts_of_host
from ropewalk.processes.interrupts import EndSignals, raising_handlers
from ropewalk.program.messages import PROGRAM, StartUnit, UnitEnded
from ropewalk.program.node import Node
from ropewalk.program.node_host import NodeHost
from ropewalk.program.nodes import NODES
from ropewalk.program.running_unit import RunningUnit
from ropewalk.transport.address import parse_address
from ropewalk.transport.blobs import BlobRef
from ropewalk.transport.client import dial_owner
from ropewalk.transport.failures import failure_of
from ropewalk.transport.frames import Part
from ropewalk.transport.link import Link, Received
from ropewalk.transport.loop import Loop
from ropewalk.transport.main_namespace import MainFacts, MainNamespace
from ropewalk.transport.serialization import loads

_KINDS = NODES
"""Unpickling a node imports its class. The import is done once here, in the fork server, and not in every process."""
_FAREWELL_S = 5.0
"""Timeout in seconds for sending the last messages."""
_NOTICE_S = 3.0
"""In a run of several hosts, a process that gets SIGTERM goes on for this long (seconds): an engine may send the notice
that a host is taken away to all processes of a job. The launcher, which learns of it from the agent, has this one hand
over its state meanwhile."""


def main(context: ProcessContext) -> None:
    """The entry of a process in which one unit runs."""
    link = dial_owner(parse_address(context.owner_address), context.credentials, PROGRAM, passport=context.passport)
    received = link.receive()
    if received is None or not isinstance(received.message, StartUnit):
        return  # the program was stopped before this process was up
    start = received.message

    def say(message: msgspec.Struct, parts: Sequence[Part] = ()) -> None:
        link.send_if_open(message, parts)

    socket_name = f"n{os.getpid()}.sock"
    host = NodeHost(
        context.folder,
        socket_name,
        start.run_id,
        start.host_id,
        start.key,
        say,
        passport=context.passport,
        forks=True,
    )
    os.register_at_fork(after_in_child=lambda: (link.close_copy(), host.forget()))
    host.leave = lambda: _leave(link)
    host.loop.start("ropewalk-node")
    host.loop.call_soon(
        lambda: host.loop.add_link(link, lambda each: host.hear(each.message, each.parts), host.launcher_lost)
    )
    well, code = False, 1
    try:
        unit = host.prepare(start, load_nodes(start, received, lambda blob: parts_of_host(context, blob)))
        signal.signal(signal.SIGTERM, _terminating(unit, host.loop if context.passport else None))
        well = host.run_unit(unit)
        code = unit.failed_first.exit_code if unit.failed_first else 1
        host.see_callers_off(unit)
    except SystemExit:
        pass  # SIGTERM, while the unit was being stopped
    except BaseException as error:
        say(UnitEnded(start.name, start.nodes[0].name, failure_of(error, __name__)))
    _say_farewell(link)
    host.close()
    signal.signal(signal.SIGTERM, _nothing)  # it is ending: callbacks of atexit would only be torn
    if not well:
        sys.exit(code)


def _say_farewell(link: Link) -> None:
    """Send the last messages, which may hold the whole state of a service; unread input must not reset the link."""
    with contextlib.suppress(LinkClosed):  # the launcher no longer listens
        link.write_out(_FAREWELL_S)
    link.close()


def _leave(link: Link) -> None:
    """End the process with the unit's exit status, without waiting for the thread that does not end."""
    _say_farewell(link)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # it may be closed, or replaced by another object
            stream.flush()
    os._exit(1)


def _terminating(unit: RunningUnit, loop: Loop | None) -> Callable[[int, object], None]:
    """Return the handler of SIGTERM: a part of being stopped, or sent by another process, as the exit status shows.

    Args:
        unit: what runs in this process.
        loop: the loop of this process, if SIGTERM may also be the notice of an engine; see `_NOTICE_S`. It may come
            twice, and later than the word of the launcher, which has heard of it from the agent.
    """
    pid, is_noticed, signals = os.getpid(), False, EndSignals()

    def terminate(number: int, _frame: object) -> None:
        nonlocal is_noticed
        is_here = os.getpid() == pid  # a forked child has the handler, and not the loop
        if loop and is_here and (signals.is_copy(number) or (unit.stopping and time.monotonic() < unit.noticed_until)):
            return
        if unit.stopping:
            sys.exit(128 + signal.SIGTERM)
        if loop and is_here and not is_noticed:
            is_noticed = True
            loop.call_soon(partial(loop.call_later, _NOTICE_S, end))
            return
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def end() -> None:
        if not unit.stopping:
            os.kill(pid, signal.SIGTERM)

    raising_handlers.append(terminate)
    return terminate


def _nothing(_number: int, _frame: object) -> None:
    """Handle a signal that asks for what happens already."""


def load_nodes(start: StartUnit, received: Received, of_host: Callable[[BlobRef], Sequence[Part]]) -> list[Node[Any]]:
    """Unpickle the nodes of a unit, after giving `__main__` the definitions that their code refers to.

    Args:
        start: the message.
        received: the same message with its parts.
        of_host: returns the parts of a blob of this host, which this process may write to.
    """
    sent = iter(received.parts)

    def payloads(at: int, sizes: Sequence[int]) -> list[tuple[Part, list[Part]]]:
        parts = iter(of_host(start.blobs[at])) if at in start.blobs else sent
        return [(next(parts), [_writable(next(parts)) for _ in range(num_buffers)]) for num_buffers in sizes]

    names = [name for name, _ in start.definitions]
    definitions = dict(zip(names, payloads(0, [num_buffers for _, num_buffers in start.definitions]), strict=True))
    MainNamespace(msgspec.msgpack.decode(start.main, type=MainFacts)).install(definitions)
    nodes: list[Node[Any]] = []
    for at, facts in enumerate(start.nodes, 1):
        ((pickled, buffers),) = payloads(at, [facts.num_buffers])
        nodes.append(loads(pickled, buffers))
    return nodes


def _writable(part: Part) -> Part:
    return bytearray(part) if memoryview(part).readonly else part
