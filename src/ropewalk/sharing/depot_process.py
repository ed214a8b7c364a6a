"""The entry of a depot process: listen, report the address, serve until no process needs it."""

from __future__ import annotations

import os

from ropewalk.calls.messages import CALLS
from ropewalk.calls.server import CallServer
from ropewalk.processes.bootstrap import ProcessContext
from ropewalk.processes.host_services import SERVICE, ServiceUp
from ropewalk.processes.messages import Retired
from ropewalk.sharing.depot import Depot
from ropewalk.transport import kernel
from ropewalk.transport.address import parse_address
from ropewalk.transport.client import dial_owner
from ropewalk.transport.host_listener import HostListener
from ropewalk.transport.link import Link, Received
from ropewalk.transport.loop_with_deputies import LoopWithDeputies
from ropewalk.transport.tokens import TokenList, socket_of

_IDLE_S = 10.0
"""Seconds after which a depot without objects and callers ends, so that its host can be released."""
SILENT_S = 6.0
"""Seconds without a message after which a caller on another host counts as gone: it sends a ping each second."""


class DepotServer:
    """A callable depot: its loop, its server, its listener.

    Args:
        context: of this process.
    """

    def __init__(self, context: ProcessContext) -> None:
        kernel.raise_descriptor_limit()
        self.loop = LoopWithDeputies()
        self.server = CallServer(self.loop)
        self.depot = Depot(self.loop, self.server, context.host)
        self._members = TokenList(context.service_key)
        self._heard: dict[Link, tuple[int, int]] = {}
        self._listener = HostListener(
            self.loop,
            os.path.join(context.folder, socket_of(context.credentials.process_id)),
            context.passport,
            context.credentials.run_id,
            self._members,
            CALLS,
            self._attend,
        )
        self.address = str(self._listener.address)
        """The address of the depot."""
        self.loop.call_soon(self._listener.open)
        self.loop.call_soon(self._look)

    def retire(self, news: Retired) -> None:
        """Refuse some processes from now on, and disconnect those that are cut off; from the loop's thread."""
        for process in news.processes:
            self._members.retire(process.id, process.fingerprint)
        cut = {process.id for process in news.processes if process.is_cut}
        self.server.hang_up_on(cut)

    def hear_out(self, news: Retired) -> None:
        """Disconnect processes that have ended, after their last messages; from the loop's thread.

        A child that one of them has forked may keep its link open, and so its objects here.
        """
        ended = {process.id for process in news.processes if not process.is_cut}
        for link in [link for link in self.depot.calls.callers if link.peer in ended]:
            self.loop.drain(link)
            self.server.hang_up(link)

    def close(self) -> None:
        """Close all links; from the loop's thread."""
        self._listener.close()
        self.server.close()

    def _attend(self, _id: str, link: Link) -> None:
        if not link.stream.carries_fds:
            self._heard[link] = (0, 0)
        self.server.attend(link)

    def _look(self) -> None:
        """Disconnect silent callers on other hosts: nothing else reports that their host is gone."""
        for link, (num_bytes, num_looks) in list(self._heard.items()):
            if link.closed:
                del self._heard[link]
            elif link.received_bytes != num_bytes:
                self._heard[link] = (link.received_bytes, 0)
            elif num_looks < SILENT_S:
                self._heard[link] = (num_bytes, num_looks + 1)
            else:
                del self._heard[link]
                self.server.hang_up(link)
        self.loop.call_later(1.0, self._look)


def main(context: ProcessContext) -> None:
    """The entry of a depot process."""
    link = dial_owner(parse_address(context.owner_address), context.credentials, SERVICE, passport=context.passport)
    depot_server = DepotServer(context)
    num_idle = 0

    def look() -> None:
        nonlocal num_idle
        num_idle = num_idle + 1 if depot_server.depot.is_idle else 0
        if num_idle > _IDLE_S:
            depot_server.loop.stop()
        depot_server.loop.call_later(1.0, look)

    def hear(received: Received) -> None:
        depot_server.retire(received.message)
        depot_server.hear_out(received.message)

    depot_server.loop.call_soon(lambda: depot_server.loop.add_link(link, hear, lambda _why: depot_server.loop.stop()))
    depot_server.loop.call_soon(look)
    link.send_if_open(ServiceUp(depot_server.address))
    depot_server.loop.start("ropewalk-depot")
    depot_server.loop.ended.wait()
