"""How a process gets to another host that it cannot reach directly: it asks its agent."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from ropewalk.errors import LinkClosed
from ropewalk.processes.messages import CONTROL, MeetAt, NeedWay, NoWay
from ropewalk.transport.address import HostAddress, UnixAddress, parse_address
from ropewalk.transport.client import dial, receive_in_time
from ropewalk.transport.credentials import Credentials
from ropewalk.transport.switchboard import Socket, join, new_ticket

#: The switchboard of an agent, in its folder.
BOARD = "board.sock"


def detour_through(agent_address: str, credentials: Credentials) -> Callable[[HostAddress, float], Socket]:
    """What asks the agent of this host for a connection; see `Passport.detour`.

    Args:
        agent_address: of the agent.
        credentials: of this process.
    """

    def detour(to: HostAddress, timeout_s: float) -> Socket:
        agent = parse_address(agent_address)
        assert isinstance(agent, UnixAddress)
        ticket = new_ticket()
        deadline = time.monotonic() + timeout_s
        link = dial(agent, credentials, CONTROL, timeout_s=timeout_s)
        try:
            link.send(NeedWay(ticket, str(to)))
            while True:
                received = receive_in_time(link, deadline)
                if received is None:
                    raise LinkClosed("the agent of this host is gone")
                match received.message:
                    case MeetAt(_, ip, port):
                        board = (ip, port) if ip else UnixAddress(os.path.join(os.path.dirname(agent.path), BOARD))
                        return join(board, ticket, timeout_s)
                    case NoWay(_, why):
                        raise LinkClosed(why)
                    case _:
                        pass  # nothing else is for us
        finally:
            link.close()

    return detour
