"""Messages of agents to a session: each is checked and passed to the part that handles it.

agent ─▶ has it the right to send this? ─▶ processes | services | tokens | relay routes | blobs | retirements | output
"""

from __future__ import annotations

import contextlib
import re
from functools import partial
from typing import TYPE_CHECKING

from ropewalk.errors import LinkClosed
from ropewalk.processes.agent_record import AgentRecord, Home
from ropewalk.processes.blob_directory import BlobDirectory
from ropewalk.processes.host_services import HostServices
from ropewalk.processes.messages import (
    BlobFetched,
    BlobNotFetched,
    BlobProgress,
    Draining,
    Exited,
    HostEvent,
    Met,
    NeedService,
    NeedToken,
    NeedWay,
    NotStarted,
    Output,
    ReadBlob,
    Records,
    RecordsFlushed,
    RelayAt,
    Retired,
    Samples,
    ServiceAt,
    Started,
    TaskReport,
    TokenIs,
)
from ropewalk.processes.output_relay import OutputRelay
from ropewalk.processes.process_manager import ProcessManager
from ropewalk.processes.record_relay import RecordRelay
from ropewalk.processes.retirements import Retirements
from ropewalk.processes.rights import TO_SESSION, guest_mark, may_say
from ropewalk.transport.link import Received
from ropewalk.transport.tokens import host_of, key_of_host, token_for

if TYPE_CHECKING:  # only a run of several hosts imports it
    from ropewalk.processes.relay_routing import RelayRouter

_ENTRY = re.compile(r"(?=.{1,200}$)[A-Za-z_]\w*(\.\w+)*:\w+", re.ASCII)
"""The entry of a service that another host may ask for; the user sees a part of it in front of the service's output."""


class AgentMessages:
    """The `FleetListener` of a session's fleet. Everything is called on the loop's thread.

    Args:
        home: of the launcher, or of the process that has joined a session.
        processes: the processes of the session.
        services: the services of its hosts.
        retirements: the retirements of the run.
        output: shows the output of processes.
        records: takes the records that processes write.
        blobs: the blobs of its hosts.
        is_joined: whether this session has joined that of a launcher, which then decides which processes are retired.
    """

    def __init__(
        self,
        home: Home,
        processes: ProcessManager,
        services: HostServices,
        retirements: Retirements,
        output: OutputRelay,
        records: RecordRelay,
        blobs: BlobDirectory,
        *,
        is_joined: bool,
    ) -> None:
        self.ways: RelayRouter | None = None
        """Connects processes of different hosts, in a run of several."""
        self.is_closing = False
        """Whether hosts go away because the session is ending."""
        self._home = home
        self._processes = processes
        self._services = services
        self._retirements = retirements
        self._output = output
        self._records = records
        self._blobs = blobs
        self._is_joined = is_joined
        self._overbearing: set[AgentRecord] = set()
        """Agents that have sent messages about processes of others."""

    def on_agent_up(self, agent: AgentRecord) -> None:
        self._services.agent_is_up()
        self._processes.place_waiting()

    def on_agent_lost(self, agent: AgentRecord, why: str) -> None:
        """Handle the loss of an agent: one event for all of its processes."""
        num = len(agent.processes)
        whose = f"; its {num} process{'es are' if num > 1 else ' is'} replaced" if num else ""
        if why:
            self._processes.tell_owners(f"{why}{whose}", "leave")
        if self.ways:
            self.ways.lost(agent)
        if not self._is_joined:
            self._retirements.note(agent.id, agent.certificate, is_cut=True)
            for guest in agent.guests:
                self._retirements.note(guest, None, is_cut=True)
        self._processes.gone_with(agent, why)

    def on_happened(self, text: str) -> None:
        self._processes.tell_owners(text)
        self._processes.place_waiting()

    def on_look(self) -> None:
        self._processes.place_waiting()

    def on_no_agents(self, error: Exception) -> None:
        self._processes.fail(error)

    def on_heard(self, agent: AgentRecord, received: Received) -> None:
        message = received.message
        if not may_say(TO_SESSION, message, is_launcher=False, concerns=partial(self._may_be_hosted_by, agent)):
            if agent not in self._overbearing:
                self._overbearing.add(agent)
                words = f"{agent.label} said {type(message).__name__} of a process that it does not host"
                self._processes.tell_owners(f"{words}; it was not acted on")
            return
        match message:
            case Samples():
                self._processes.sampled(message)
            case Output():
                self._output.take(agent, message, self._processes.spec_of(message.id))
            case Records():
                self._records.take(agent, message, self._processes.known(message.id))
            case RecordsFlushed():
                self._records.flushed(agent, message.number)
            case HostEvent():
                self._processes.tell_owners(f"{agent.host}: {message.text}")
            case Draining():
                if not self.is_closing:
                    self._processes.drain(agent, message)
            case NeedWay():
                if self.ways:
                    self.ways.need(agent, message)
            case NeedService():
                self._need_service(agent, message)
            case NeedToken():
                self._need_token(agent, message)
            case Retired():
                if self._is_joined:  # the launcher reports it, through the agent
                    self._retirements.tell_listeners(message)
                else:
                    self._guests_gone(agent, message)
            case RelayAt():
                if self.ways:
                    self.ways.relay_at(agent, message)
            case ReadBlob() | BlobProgress() | BlobFetched() | BlobNotFetched():
                self._blobs.heard(agent, message)
            case Met():
                if self.ways:
                    self.ways.met(agent, message.ticket)
            case Started() | NotStarted() | Exited() | TaskReport():
                self._processes.heard(message)
            case _:
                pass  # Pong

    def _may_be_hosted_by(self, agent: AgentRecord, id: str) -> bool:
        is_hosted = self._processes.is_hosted_by(agent, id)
        if is_hosted is None:
            return self._is_joined or id in self._retirements.ids or self._is_guest(agent, id)
        return is_hosted

    def _is_guest(self, agent: AgentRecord, id: str) -> bool:
        """Return whether a process was started by a session inside of a process on the host of an agent."""
        return id.endswith(guest_mark(agent.id if self._home.passport else ""))

    def _guests_gone(self, agent: AgentRecord, news: Retired) -> None:
        """Retire processes that sessions inside of processes have started.

        Those sessions do not know our services, and cannot tell them.
        """
        for process in news.processes:
            if self._is_guest(agent, process.id):
                agent.guests.discard(process.id)
                self._retirements.note(process.id, None, is_cut=False)

    def _need_service(self, agent: AgentRecord, need: NeedService) -> None:
        """Find or start a service for a process on a host."""

        def tell(address: str, problem: str) -> None:
            if agent.link:
                with contextlib.suppress(LinkClosed):
                    agent.link.send(ServiceAt(need.ticket, address, problem))

        if _ENTRY.fullmatch(need.entry):
            self._services.ask(need.entry, agent, tell, need.unanswered)
        else:
            tell("", f"{need.entry[:100]!r} is not an entry; write module:function")

    def _need_token(self, agent: AgentRecord, need: NeedToken) -> None:
        """Answer a process on a host that wants to call a service on another one."""
        token = problem = ""
        if need.id in self._retirements.ids:
            problem = f"{need.id} was retired from the run"
        else:
            if self._processes.spec_of(need.id) is None:  # it was started by a session inside of a process there
                agent.guests.add(need.id)
            try:
                key = key_of_host(self._home.run_key, host_of(need.address))
                token = token_for(key, need.address, need.id, self._processes.fingerprint_of(need.id))
            except ValueError as error:
                problem = str(error)
        if agent.link:
            with contextlib.suppress(LinkClosed):
                agent.link.send(TokenIs(need.ticket, token, problem))
