"""The agent that a session inside a process of another session joins, instead of having a fleet of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ropewalk.engines.resources import Resources
from ropewalk.errors import EngineError, StartFailed
from ropewalk.processes import bootstrap
from ropewalk.processes.agent_record import AgentRecord
from ropewalk.processes.bootstrap import ProcessContext
from ropewalk.processes.fleet import FleetListener
from ropewalk.processes.messages import CONTROL, ShutdownMessage
from ropewalk.processes.sizing import Share
from ropewalk.supervision.liveness import Lease
from ropewalk.transport.address import parse_address
from ropewalk.transport.client import dial
from ropewalk.transport.link import Link
from ropewalk.transport.loop import Loop

_ORPHAN_S = 1.0
"""Time that a process has to end after its agent is gone, in seconds."""
_FOR_EVER_S = 1e9
"""There is no lease on the same host: the kernel reports the end."""


class JoinedAgent:
    """The agent of this host, with the interface of a fleet.

    Args:
        parent: the context of this process.
        loop: loop of the session.
        listener: the session's `AgentMessages`.
    """

    def __init__(self, parent: ProcessContext, loop: Loop, listener: FleetListener) -> None:
        self._parent = parent
        self._loop = loop
        self._listener = listener
        self._agent = AgentRecord(
            "agent",
            Share(None, Resources()),
            Lease(_FOR_EVER_S, time.monotonic()),
            parent.credentials,
            host=parent.host,
            environment=bootstrap.inherited,
        )
        self.agents: dict[str, AgentRecord] = {}

    def open(self) -> None:
        """Connect to the agent.

        Raises:
            TransportError: it does not answer.
        """
        link = dial(parse_address(self._parent.agent_address), self._parent.credentials, CONTROL)
        self.agents[self._agent.id] = self._agent
        self._loop.call_soon(lambda: self.linked(self._agent, link))

    def linked(self, agent: AgentRecord, link: Link) -> None:
        """Take over the link to the agent."""
        agent.link = link
        self._loop.add_link(link, lambda received: self._listener.on_heard(agent, received), self._lost)
        self._listener.on_agent_up(agent)

    def prepare(self, resources: Resources, then: Callable[[EngineError | None], object]) -> None:
        """Call `then` at once: there is no engine to ask."""
        self._loop.call_soon(lambda: then(None))

    def place(self, id: str, resources: Resources, total: int, beside: AgentRecord | None = None) -> AgentRecord | None:
        """Return the agent of this host, to which all processes go."""
        if self._agent.link is None:
            return None
        self._agent.processes[id] = resources
        return self._agent

    def per_agent(self, resources: Resources) -> int:
        """Return 1: the size of the agent cannot be changed from here."""
        return 1

    def refusal(self, processes: Callable[[], Sequence[Resources]]) -> str:
        """Return "": only the launcher knows how much room the host has."""
        return ""

    def want(self, waiting: list[Resources]) -> None:
        """Do nothing: no other agent can be had from here."""

    def release(self, agent: AgentRecord, id: str) -> None:
        """Note that a process is gone."""
        agent.processes.pop(id, None)
        agent.leaving.discard(id)

    def close(self) -> bool:
        """Have our processes ended; the agent itself goes on. Returns True: no job is left, as there was none."""
        if self._agent.link:
            self._agent.link.send_if_open(ShutdownMessage())
        return True

    def kill(self) -> None:
        """Do nothing: the agent itself goes on."""

    def _lost(self, why: str) -> None:
        text = f"the agent on {self._agent.host or 'a host'} is gone: {why}"
        self.agents.clear()
        self._listener.on_agent_lost(self._agent, text)
        # The kernel ends this process with the agent, in a moment. An error now would become the result of a task that
        # runs again elsewhere; the error is for the case that the agent lives and only its link is lost.
        error = StartFailed(f"{text}; this process ends with it")
        self._loop.call_later(_ORPHAN_S, lambda: self._listener.on_no_agents(error))
