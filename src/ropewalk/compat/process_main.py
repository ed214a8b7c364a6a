"""The entry point of a process that runs a `Process` object: connect to the owner, receive the object, run it."""

from __future__ import annotations

import os
import sys
from typing import Any, cast

from ropewalk.compat import process as _loaded_once  # imported in the fork server, instead of in every process
from ropewalk.compat.process_payload import PROCESS, BeginProcess, Loaded, Up, unpack
from ropewalk.processes.bootstrap import ProcessContext
from ropewalk.processes.memory_limit import explaining
from ropewalk.transport.address import parse_address
from ropewalk.transport.client import dial_owner

_PROCESS = _loaded_once


def main(context: ProcessContext) -> None:
    """Run the `Process` object that the owner sends."""
    link = dial_owner(parse_address(context.owner_address), context.credentials, PROCESS, passport=context.passport)
    os.register_at_fork(after_in_child=link.close_copy)
    fd = link.stream.fileno()
    os.set_inheritable(fd, True)  # after `os.exec`, the link must stay open and not look lost
    link.send(Up())
    received = link.receive()
    if received is None or not isinstance(received.message, BeginProcess):
        return  # the process was terminated before it connected
    process: Any = unpack(received)
    link.send_if_open(Loaded())
    del received  # frees the arguments that the process object drops
    process.run = explaining(process.run)
    # The owner sends nothing more, so the link becomes readable when the owner is gone, like a sentinel.
    sys.exit(cast(int, process._bootstrap(parent_sentinel=fd)))
