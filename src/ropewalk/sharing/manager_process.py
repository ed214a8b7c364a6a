"""The entry of a manager's process: connect to the starter, get the types, serve until told to stop or left alone."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import traceback
from multiprocessing.process import AuthenticationString  # type: ignore[attr-defined]  # not in the stubs
from typing import cast

from ropewalk.errors import LinkClosed
from ropewalk.processes.bootstrap import ProcessContext
from ropewalk.processes.messages import Retired
from ropewalk.sharing import managers, proxies
from ropewalk.sharing.depot_process import DepotServer
from ropewalk.sharing.manager_messages import MANAGER, BeginManager, ManagerReady, NotReady, unpack
from ropewalk.sharing.manager_server import ManagerServer, RegisteredType
from ropewalk.sharing.proxies import Token
from ropewalk.transport.address import parse_address
from ropewalk.transport.client import dial_owner
from ropewalk.transport.failures import failure_of
from ropewalk.transport.link import Link, Received

_LOADED = managers
"""Unpickling a registry imports it. Here that is done once, in the fork server, instead of in every process."""
_FAREWELL_S = 5.0
"""Seconds to send a last message."""


def main(context: ProcessContext) -> None:
    """The entry of a manager's process."""
    link = dial_owner(parse_address(context.owner_address), context.credentials, MANAGER, passport=context.passport)
    os.register_at_fork(after_in_child=link.close_copy)
    received = link.receive()
    if received is None or not isinstance(received.message, BeginManager):
        return  # it was ended before it started
    begin = received.message
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it must outlive the code that has to clean up
    current = multiprocessing.current_process()
    current.name, current.authkey = begin.name, cast(bytes, AuthenticationString(begin.authkey))
    by_initializer = False
    try:
        registry, initializer, initargs = unpack(received)
        del received
        by_initializer = True
        if initializer:
            initializer(*initargs)
    except BaseException as error:
        traceback.print_exception(error)
        _say_last(link, NotReady(failure_of(error, __name__), by_initializer))
        sys.exit(1)
    depot_server = DepotServer(context)
    token = Token("", depot_server.address, "", begin.run_id, begin.name)
    kinds = {typeid: RegisteredType(*facts) for typeid, facts in registry.items()}
    proxies.here = ManagerServer(depot_server, kinds, token, begin.authkey)

    def hear(received: Received) -> None:
        match received.message:
            case Retired() as news:
                depot_server.retire(news)
            case _:
                depot_server.loop.stop()  # the starter sends nothing else then

    depot_server.loop.call_soon(lambda: depot_server.loop.add_link(link, hear, lambda _why: depot_server.loop.stop()))
    link.send_if_open(ManagerReady(os.getpid(), depot_server.address))
    depot_server.loop.start("ropewalk-manager")
    depot_server.loop.ended.wait()


def _say_last(link: Link, message: NotReady) -> None:
    with contextlib.suppress(LinkClosed):  # the starter is gone
        link.send(message)
        link.write_out(_FAREWELL_S)
    link.close()
