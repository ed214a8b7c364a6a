"""The entry of a process that a `Process` object was started for: meet the owner, take the object, run it."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, cast

from ropewalk.compat import process as _loaded_once  # in the fork server, instead of in every process
from ropewalk.compat.process_payload import PROCESS, BeginProcess, Loaded, Up, unpack
from ropewalk.errors import LinkClosed
from ropewalk.processes.bootstrap import ProcessContext
from ropewalk.processes.memory_limit import explaining
from ropewalk.transport.address import parse_address
from ropewalk.transport.client import dial_owner

_PROCESS = _loaded_once


def main(context: ProcessContext) -> None:
    """The entry of a process."""
    link = dial_owner(parse_address(context.owner_address), context.credentials, PROCESS, passport=context.passport)
    os.register_at_fork(after_in_child=link.close_copy)
    fd = link.stream.fileno()
    os.set_inheritable(fd, True)  # a program that takes this process over (`os.exec`) must not look like a lost link
    link.send(Up())
    received = link.receive()
    if received is None or not isinstance(received.message, BeginProcess):
        return  # it was ended before it was there
    process: Any = unpack(received)
    with contextlib.suppress(LinkClosed):  # nobody is left who would take anything back
        link.send(Loaded())
    del received  # and with it the arguments, as far as the process object drops them
    process.run = explaining(process.run)
    # The owner says nothing more, so that the link is readable when the owner is gone, as a sentinel is.
    sys.exit(cast(int, process._bootstrap(parent_sentinel=fd)))
