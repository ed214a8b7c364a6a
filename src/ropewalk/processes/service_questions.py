"""Questions of an agent's processes about services, which mostly the launcher can answer.

    process ── NeedService, NeedToken ─▶ agent ── the same ─▶ launcher
            ◀── ServiceAt, TokenIs ─────       ◀─────────────

The ticket of a question says which process asked. The agent itself makes tokens for services of its own host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from ropewalk.processes.hosted_process import HostedProcess
from ropewalk.processes.messages import NeedService, NeedToken, ServiceAt, TokenIs
from ropewalk.transport.link import Link
from ropewalk.transport.tokens import host_of, token_for


class ServiceQuestions:
    """Passes questions on and answers back. Everything is called on the loop's thread.

    Args:
        service_key: the key of this host's services.
        own_name: name of this host in addresses.
        processes: the processes of the agent, by id.
        tell_launcher: sends a message to the launcher.
    """

    def __init__(
        self,
        service_key: str,
        own_name: str,
        processes: Mapping[str, HostedProcess],
        tell_launcher: Callable[[msgspec.Struct], object],
    ) -> None:
        self._service_key = service_key
        self._own_name = own_name
        self._processes = processes
        self._tell_launcher = tell_launcher
        self._asking: dict[str, Link] = {}

    def need_service(self, link: Link, need: NeedService) -> None:
        """Ask the launcher where a service is."""
        self._asking = {ticket: asks for ticket, asks in self._asking.items() if not asks.closed}
        if self._asking.setdefault(need.ticket, link) is link:  # else it is the ticket of another process
            self._tell_launcher(need)

    def need_token(self, link: Link, need: NeedToken) -> None:
        """Answer a process that wants to call a service of this host, or of another one, whose key the launcher has."""
        process = self._processes.get(link.peer)
        if process is None:
            return  # it has ended
        certificate = process.start.certificate
        try:
            if host_of(need.address) == self._own_name:
                fingerprint = certificate.fingerprint if certificate else ""
                token = token_for(self._service_key, need.address, link.peer, fingerprint)
                link.send_if_open(TokenIs(need.ticket, token))
            elif self._asking.setdefault(need.ticket, link) is link:
                self._tell_launcher(msgspec.structs.replace(need, id=link.peer))
        except ValueError as error:
            link.send_if_open(TokenIs(need.ticket, "", str(error)))

    def answered(self, answer: ServiceAt | TokenIs) -> None:
        """Pass on the launcher's answer to the process that asked."""
        if link := self._asking.pop(answer.ticket, None):
            link.send_if_open(answer)
