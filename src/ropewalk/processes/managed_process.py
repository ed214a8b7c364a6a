"""The record of a process in the session that was asked for it."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from ropewalk.processes.agent_record import AgentRecord
from ropewalk.processes.messages import Exited, Sample
from ropewalk.processes.owner import Owner, ProcessSpec
from ropewalk.transport.credentials import Credentials, ProcessCertificate
from ropewalk.transport.link import Link


class ManagedProcess(msgspec.Struct):
    """One process, from the request for it to its end."""

    spec: ProcessSpec
    owner: Owner
    credentials: Credentials
    environment: Mapping[str, str]
    """The variables of this process at the time of the request."""
    certificate: ProcessCertificate | None = None
    agent: AgentRecord | None = None
    link: Link | None = None
    """The link of the process until it ends."""
    pid: int = 0
    asked_at: float = msgspec.field(default_factory=time.monotonic)
    """Monotonic time of the request."""
    run: str = ""
    """The run that it was given; see `ProcessSpec.run`."""
    request: int = 0
    """The word that its owner has written into its task page."""
    sample: Sample | None = None
    sampled_at: float = 0.0
    """Monotonic time of the sample."""
    exited: Exited | None = None
    """How it ended, while its last messages are still in transit."""
    was_signalled: bool = False
    """Whether its owner has sent it a signal, after which its end is not an accident."""
    has_taken_leave: bool = False
    is_leaving: bool = False
    """Whether its owner has released it, so that another one may be there in its place already."""
