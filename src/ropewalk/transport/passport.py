"""What a process carries with it in a run of several hosts: where it is, and what lets it speak with the others."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from ropewalk.transport.address import HostAddress
from ropewalk.transport.credentials import ProcessCertificate


@dataclass(frozen=True, slots=True)
class Passport:
    """Where a process of a run with several hosts is, and how it gets to the others."""

    host: str
    """The id of the agent of its host, or "launcher"."""
    ip: str = ""
    """Where other hosts reach this one; empty if only its agent leads here."""
    certificate: ProcessCertificate | None = None
    """Its own; None where no host has an address and nothing speaks TLS."""
    detour: Callable[[HostAddress, float], socket.socket] | None = field(default=None, repr=False)
    """Asks the agents for a connection to a process, for so many seconds; None if there is nobody to ask.

    Raises `TransportError` or `OSError`."""
    unreachable: set[str] = field(default_factory=set[str])
    """Hosts that did not answer directly: they are not tried again."""
