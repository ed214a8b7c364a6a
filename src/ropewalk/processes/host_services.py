"""Processes that serve a whole host: one for each entry and host, started at the first request from there.

    process ──NeedService──▶ its agent ──▶ session: is it up there? else start it ──┐
       ▲                                                                           ▼
       └──────ServiceAt──────── agent ◀──────────── its address ◀──ServiceUp── the service

They belong to the launcher, so that they outlive the process that asked for them first; they take no room that other
processes could have, and end by themselves when no process needs them. A process may need a service at the moment when
that ends, before the launcher has learnt of it: the process reports which address does not answer, and gets that of the
next service.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from ropewalk.errors import StartFailed
from ropewalk.processes.agent_record import AgentRecord
from ropewalk.processes.bootstrap import ProcessContext
from ropewalk.processes.deaths import record_of
from ropewalk.processes.messages import Exited, NeedService, NotStarted, Retired, ServiceAt, TaskReport
from ropewalk.processes.owner import ProcessSpec
from ropewalk.processes.questions import ask_agent
from ropewalk.transport.joining import new_ticket
from ropewalk.transport.link import Codec, Link, Received

if TYPE_CHECKING:
    from ropewalk.processes.session import Session


class ServiceUp(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """The message of a service to the launcher once it can be reached."""

    address: str


SERVICE = Codec(ServiceUp | Retired)
"""The protocol between such a service and the launcher."""

Then = Callable[[str, str], object]
"""Called with the address of a service, or why there is none."""
_NEWS_S = 20.0
"""Timeout in seconds: if the launcher has not learnt by then that a service that does not answer has ended, it has not
ended."""


class _Service(msgspec.Struct):
    """One service of one host.

    Attributes:
        entry: the function that it runs.
        agent: agent of its host.
        address: address at which it is reached; "" until it is up.
        link: link to its process.
        asking: callbacks to be called when it is up.
        doubting: callbacks of callers that it does not answer, with the host that they ask for: called with the next
            one.
    """

    entry: str
    agent: AgentRecord
    address: str = ""
    link: Link | None = None
    asking: list[Then] = msgspec.field(default_factory=list[Then])
    doubting: list[tuple[AgentRecord | None, Then]] = msgspec.field(
        default_factory=list[tuple["AgentRecord | None", Then]]
    )


class HostServices:
    """The services of all hosts of a session. Everything is called on the loop's thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._services: dict[str, _Service] = {}
        self._anywhere: list[tuple[str, Then]] = []
        self._numbers = itertools.count(1)

    def ask(self, entry: str, agent: AgentRecord | None, then: Then, unanswered: str = "") -> None:
        """Find a service, and start it if there is none.

        Args:
            entry: the function that it runs, as in a `ProcessSpec`.
            agent: agent of its host; None: any host, preferably one where it runs already.
            then: called with its address and "", or "" and why it cannot be had.
            unanswered: address at which a service does not answer the caller: as soon as that has ended, `then` gets
                the address of the next one; the same address if it does not end.
        """
        doubted: _Service | None = None
        for service in self._services.values():
            fits = service.agent is agent if agent else not service.agent.draining  # it has no other host
            if service.entry == entry and fits:
                if not service.address:
                    service.asking.append(then)
                elif service.address == unanswered:
                    doubted = service
                    continue
                else:
                    then(service.address, "")
                return
        if doubted:
            self._doubt(doubted, agent, then)
            return
        host = agent or self._session.processes.any_agent()
        if host is None:
            self._anywhere.append((entry, then))
            return
        rank = next(self._numbers)
        spec = ProcessSpec(_group(entry), rank, entry, SERVICE, kind=_group(entry), agent=host.id)
        try:
            id = self._session.processes.start(spec, self)
        except StartFailed as error:
            then("", str(error))
            return
        self._services[id] = _Service(entry, host, asking=[then])

    def _doubt(self, service: _Service, agent: AgentRecord | None, then: Then) -> None:
        doubt = agent, then
        service.doubting.append(doubt)

        def still_there() -> None:
            if doubt in service.doubting:
                service.doubting.remove(doubt)
                then(service.address, "")

        self._session.loop.call_later(_NEWS_S, still_there)

    def retired(self, news: Retired) -> None:
        """Tell all services of retired processes."""
        for service in self._services.values():
            if service.address and service.link:
                service.link.send_if_open(news)

    def agent_is_up(self) -> None:
        """Start services that may run on any agent, now that one is up."""
        anywhere, self._anywhere = self._anywhere, []
        for entry, then in anywhere:
            self.ask(entry, None, then)

    # As the owner of these processes

    def on_link(self, id: str, link: Link) -> None:
        service = self._services.get(id)
        if service:
            service.link = link

    def on_message(self, id: str, received: Received) -> None:
        service = self._services.get(id)
        if service:
            service.address = received.message.address
            asking, service.asking = service.asking, []
            for then in asking:
                then(service.address, "")

    def on_report(self, id: str, report: TaskReport) -> None:
        """Does nothing: a service has no tasks."""

    def on_exited(self, id: str, exited: Exited, host_lost: bool) -> None:
        service = self._services.get(id)
        host = service.agent.host if service else ""
        record = record_of(exited, name=f"the {_group(service.entry)}" if service else id, host=host)
        self._gone(id, exited.ended_by or record.exit_phrase)
        if service and service.address and exited.exit_code and not host_lost and not self._session.closed:
            self._session.processes.tell_owners(f"{record.describe()}; what it held is gone")

    def on_not_started(self, id: str, failure: NotStarted) -> None:
        self._gone(id, failure.reason)

    def on_draining(self, id: str, why: str, left_s: float) -> None:
        """Does nothing: the objects of a service go with its host."""

    def on_event(self, text: str, kind: str = "") -> None:
        """Does nothing: others report it to the user."""

    def on_failed(self, error: Exception) -> None:
        for id in list(self._services):
            self._gone(id, str(error))
        anywhere, self._anywhere = self._anywhere, []
        for _, then in anywhere:
            then("", str(error))

    def _gone(self, id: str, why: str) -> None:
        service = self._services.pop(id, None)
        if service:
            for then in service.asking:
                then("", f"the {_group(service.entry)} on {service.agent.host} could not be started: {why}")
            doubting, service.doubting = service.doubting, []
            for agent, then in doubting:
                self.ask(service.entry, agent, then)


def find_through_agent(context: ProcessContext, entry: str, unanswered: str = "") -> str:
    """The address of a service of this host, from inside a process; waits until it is up.

    Args:
        context: of this process.
        entry: the function that the service runs.
        unanswered: see `HostServices.ask`.

    Raises:
        StartFailed: it could not be started.
        TransportError: the agent of this host is gone.
    """
    question = NeedService(new_ticket(), entry, unanswered)
    found = ask_agent(context.agent_address, context.credentials, question, ServiceAt, timeout_s=None)
    if not found.address:
        raise StartFailed(found.problem)
    return found.address


def _group(entry: str) -> str:
    """Return the name of a service for the user: "depot" for `ropewalk.sharing.depot_process:main`."""
    return entry.partition(":")[0].rpartition(".")[2].removesuffix("_process")


__all__ = ["SERVICE", "HostServices", "ServiceUp", "find_through_agent"]
