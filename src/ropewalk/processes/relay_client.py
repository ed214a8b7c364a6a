"""How a process connects to another host that it cannot reach directly: it asks its agent for a relay."""

from __future__ import annotations

import os
from collections.abc import Callable

from ropewalk.errors import LinkClosed
from ropewalk.processes.messages import MeetAt, NeedWay, NoWay
from ropewalk.processes.questions import ask_agent
from ropewalk.transport.address import HostAddress, UnixAddress, parse_address
from ropewalk.transport.credentials import Credentials
from ropewalk.transport.joining import Socket, join, new_ticket

BOARD = "board.sock"
"""The socket of an agent's relay, in its folder."""


def detour_through(agent_address: str, credentials: Credentials) -> Callable[[HostAddress, float], Socket]:
    """Return a function that asks the agent of this host for a connection; see `Passport.detour`.

    Args:
        agent_address: address of the agent.
        credentials: credentials of this process.
    """

    def detour(to: HostAddress, timeout_s: float) -> Socket:
        agent = parse_address(agent_address)
        assert isinstance(agent, UnixAddress)
        ticket = new_ticket()
        place = ask_agent(agent_address, credentials, NeedWay(ticket, str(to)), (MeetAt, NoWay), timeout_s)
        if isinstance(place, NoWay):
            raise LinkClosed(place.why)
        board = (place.ip, place.port) if place.ip else UnixAddress(os.path.join(os.path.dirname(agent.path), BOARD))
        return join(board, ticket, timeout_s)

    return detour
