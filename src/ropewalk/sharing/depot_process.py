"""The entry of a depot: listen, say where, serve until nobody needs it."""

from __future__ import annotations

import contextlib
import os
import resource

from ropewalk.calls.messages import CALLS
from ropewalk.calls.server import CallServer
from ropewalk.errors import LinkClosed
from ropewalk.processes.bootstrap import ProcessContext
from ropewalk.processes.host_services import SERVICE, ServiceUp
from ropewalk.processes.messages import Retired
from ropewalk.sharing.depot import Depot
from ropewalk.transport.address import parse_address
from ropewalk.transport.client import dial_owner
from ropewalk.transport.host_listener import HostListener
from ropewalk.transport.link import Link, Received
from ropewalk.transport.loop import Loop
from ropewalk.transport.tokens import TokenList, socket_of

#: A depot without objects and callers ends after so long, so that its host can be given back.
_IDLE_S = 10.0
#: A caller on another host that has not even sent a ping for so long is gone: it sends one each second.
SILENT_S = 6.0


class DepotServer:
    """A depot that can be called: its loop, its server, its listener.

    Args:
        context: of this process.
    """

    def __init__(self, context: ProcessContext) -> None:
        raise_descriptor_limit()
        self.loop = Loop()
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
        """Where it is reached."""
        self.loop.call_soon(self._listener.open)
        self.loop.call_soon(self._look)

    def retire(self, news: Retired) -> None:
        """Refuse some processes from now on, and hang up on those that are cut off; from the loop's thread."""
        for process in news.processes:
            self._members.retire(process.id, process.fingerprint)
        cut = {process.id for process in news.processes if process.is_cut}
        self.server.hang_up_on(cut)

    def hear_out(self, news: Retired) -> None:
        """Hang up on those that have ended, after what they have said; from the loop's thread.

        A child that one of them has forked may keep its link open, and so what it holds here.
        """
        ended = {process.id for process in news.processes if not process.is_cut}
        for link in [link for link in self.depot.desk.callers if link.peer in ended]:
            self.loop.drain(link)
            self.server.hang_up(link)

    def close(self) -> None:
        """Hear nobody any more; from the loop's thread."""
        self._listener.close()
        self.server.close()

    def _attend(self, _id: str, link: Link) -> None:
        if not link.stream.carries_fds:
            self._heard[link] = (0, 0)
        self.server.attend(link)

    def _look(self) -> None:
        """Hang up on callers of other hosts that are silent: nobody else says that their host is gone."""
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
    hall = DepotServer(context)
    num_idle = 0

    def look() -> None:
        nonlocal num_idle
        num_idle = num_idle + 1 if hall.depot.is_idle else 0
        if num_idle > _IDLE_S:
            hall.loop.stop()
        hall.loop.call_later(1.0, look)

    def hear(received: Received) -> None:
        hall.retire(received.message)
        hall.hear_out(received.message)

    hall.loop.call_soon(lambda: hall.loop.add_link(link, hear, lambda _why: hall.loop.stop()))
    hall.loop.call_soon(look)
    with contextlib.suppress(LinkClosed):  # the loop notices at once
        link.send(ServiceUp(hall.address))
    hall.loop.start("ropewalk-depot", deputies=True)
    hall.loop.ended.wait()


def raise_descriptor_limit() -> None:
    """A large item on its way holds a descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard) if soft < hard else (soft, hard))
