"""An agent as its launcher knows it, and what agents need to know of their launcher."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ropewalk.engines.resources import Resources
from ropewalk.processes.sizing import Share
from ropewalk.settings import Settings
from ropewalk.supervision.liveness import Lease
from ropewalk.transport.address import Address
from ropewalk.transport.credentials import Credentials, ProcessCertificate
from ropewalk.transport.link import Link
from ropewalk.transport.passport import Passport

#: What the launcher calls itself in a run.
LAUNCHER = "launcher"


@dataclass(slots=True, eq=False)
class AgentRecord:
    """One agent, from its submission to its end."""

    id: str
    share: Share
    lease: Lease
    credentials: Credentials
    certificate: ProcessCertificate | None = None
    job: str = ""
    link: Link | None = None
    pid: int = 0
    host: str = ""
    ip: str = ""
    launcher_secret: str = field(default="", repr=False)
    """What the launcher proves that it knows when it dials this agent, and no other one."""
    launcher_ticket: str = field(default="", repr=False)
    """What it shows at the agent's switchboard then."""
    dialled: bool = False
    """Whether it waits for the launcher instead of dialling it."""
    board: tuple[str, int] | None = None
    """Where it waits; None behind the engine's door."""
    dialling: bool = False
    submitted: float = field(default_factory=time.monotonic)
    running_since: float | None = None
    checked: float = 0.0
    said: str = ""
    """What the engine said last of a job that is pending, or the agent of why it has to be dialled."""
    num_bytes: int = 0
    pinged: float | None = None
    """When the ping was sent that has not been answered yet."""
    round_trip_s: float = 0.0
    """The quickest answer to a ping so far; 0 on this host."""
    draining: str = ""
    """Why it takes nothing new; empty while it does."""
    idle_since: float | None = None
    is_crowded: bool = False
    """Whether people were told that it hosts more than it has room for."""
    blobs: dict[str, list[object]] = field(default_factory=dict[str, list[object]])
    """Blobs that were sent there, with those who need them."""
    codes: set[str] = field(default_factory=set[str])
    """Project files that were sent there."""
    processes: dict[str, Resources] = field(default_factory=dict[str, Resources])
    """What it hosts, and what each asked for."""
    environment: Mapping[str, str] | None = None
    """What its processes inherit; None if it is on another host, whose variables are its own affair."""
    guests: set[str] = field(default_factory=set[str])
    """Processes that sessions inside of its processes have started, as far as they have asked for tokens."""
    services: set[str] = field(default_factory=set[str])
    """Processes of ours that serve this host; they take no room."""

    @property
    def up(self) -> bool:
        """Whether it takes processes."""
        return self.link is not None and self.pid != 0 and not self.draining

    @property
    def label(self) -> str:
        """What people read."""
        return f"{self.id} on {self.host}" if self.host else self.id


@dataclass(frozen=True, slots=True)
class Home:
    """What a fleet needs to know of its launcher."""

    run_id: str
    folder: Path
    settings: Settings
    address: Address
    passport: Passport | None
    issue: Callable[[str], ProcessCertificate] | None
    """Makes certificates; None if no host speaks TLS."""
    run_key: str = field(default="", repr=False)
    """From which the keys of all services of the run follow; see `transport/tokens.py`."""
