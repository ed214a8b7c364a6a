"""The passport of a process in a run of several hosts: where it is, and how it connects to the others."""

from __future__ import annotations

import socket
from collections.abc import Callable

import msgspec

from ropewalk.transport.address import HostAddress
from ropewalk.transport.credentials import ProcessCertificate


class Passport(msgspec.Struct, frozen=True):
    """Where a process of a run with several hosts is, and how it reaches the others."""

    host: str
    """The id of the agent of its host, or "launcher"."""
    ip: str = ""
    """The address at which other hosts reach it; empty if it is reached through its agent only."""
    certificate: ProcessCertificate | None = None
    """Its certificate; None where no host has an address and nothing speaks TLS."""
    detour: Callable[[HostAddress, float], socket.socket] | None = None
    """Asks the agents for a connection to a process through a relay, with a timeout in seconds.

    It is None if there is no agent.

    Raises `TransportError` or `OSError`.
    """
    unreachable: set[str] = msgspec.field(default_factory=set[str])
    """Hosts that did not answer directly: they are not dialled again."""
