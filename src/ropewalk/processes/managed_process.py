"""A process as the session that was asked for it knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ropewalk.processes.agent_record import AgentRecord
from ropewalk.processes.messages import Exited, Sample
from ropewalk.processes.owner import Owner, ProcessSpec
from ropewalk.transport.credentials import Credentials, ProcessCertificate
from ropewalk.transport.link import Link


@dataclass(slots=True)
class ManagedProcess:
    """One process, from the request for it to its end."""

    spec: ProcessSpec
    owner: Owner
    credentials: Credentials
    environment: Mapping[str, str]
    """The variables that this process had when it asked for it."""
    certificate: ProcessCertificate | None = None
    agent: AgentRecord | None = None
    link: Link | None = None
    """Until it ends."""
    pid: int = 0
    sample: Sample | None = None
    exited: Exited | None = None
    """How it ended, while its last words are still under way."""
    has_taken_leave: bool = False
    is_leaving: bool = False
    """Whether its owner lets it go, so that another one may be there in its place already."""
