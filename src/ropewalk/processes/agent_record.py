"""The launcher's record of an agent, and what agents need to know of their launcher."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ropewalk.engines.resources import HostCapacity, Resources
from ropewalk.processes.sizing import Share, fits
from ropewalk.settings import Settings
from ropewalk.supervision.liveness import Lease
from ropewalk.transport.address import Address
from ropewalk.transport.credentials import Credentials, ProcessCertificate
from ropewalk.transport.link import Link
from ropewalk.transport.passport import Passport


@dataclass(slots=True, eq=False)
class AgentRecord:
    """One agent, from its submission to its end."""

    id: str
    share: Share
    lease: Lease
    credentials: Credentials
    certificate: ProcessCertificate | None = None
    job: str = ""
    room: HostCapacity | None = None
    """The capacity of its host, if it has the whole host, which may be larger than its share."""
    link: Link | None = None
    pid: int = 0
    host: str = ""
    ip: str = ""
    launcher_secret: str = field(default="", repr=False)
    """The secret that the launcher proves when it dials this agent, and no other one."""
    launcher_ticket: str = field(default="", repr=False)
    """The ticket that the launcher shows at the agent's relay then."""
    dialled: bool = False
    """Whether the agent waits for the launcher instead of dialling it."""
    board: tuple[str, int] | None = None
    """Address of the relay at which it waits; None if it is reached through the engine."""
    dialling: bool = False
    submitted: float = field(default_factory=time.monotonic)
    running_since: float | None = None
    checked: float = 0.0
    said: str = ""
    """What the engine last said of a pending job, or the agent of why it has to be dialled."""
    num_bytes: int = 0
    pinged: float | None = None
    """When the ping was sent that has not been answered yet."""
    round_trip_s: float = 0.0
    """The shortest round trip of a ping so far, in seconds; 0 on this host."""
    draining: str = ""
    """Why it takes no new processes; empty while it does."""
    idle_since: float | None = None
    is_crowded: bool = False
    """Whether the user was told that it hosts more than it has room for."""
    blobs: dict[str, list[object]] = field(default_factory=dict[str, list[object]])
    """Blobs that were sent to it, with the owners that need them."""
    blob_address: str = ""
    """Address at which other agents fetch blobs from it; empty if they cannot."""
    codes: set[str] = field(default_factory=set[str])
    """Ids of project files that were sent to it."""
    processes: dict[str, Resources] = field(default_factory=dict[str, Resources])
    """The processes that it hosts, with the resources of each."""
    leaving: set[str] = field(default_factory=set[str])
    """Those of them that end when their work is done, and in whose place others may be already."""
    environment: Mapping[str, str] | None = None
    """The variables that its processes inherit; None if it is on another host, which does not report its variables."""
    guests: set[str] = field(default_factory=set[str])
    """Processes that sessions inside of its processes have started, if they have asked for tokens."""
    services: set[str] = field(default_factory=set[str])
    """Processes of ours that serve this host; they take no room."""

    @property
    def up(self) -> bool:
        """Whether it takes processes."""
        return self.link is not None and self.pid != 0 and not self.draining

    def has_room(self, resources: Resources) -> bool:
        """Whether its share has room for another process beside those that it hosts."""
        leaving = [self.processes[id] for id in self.leaving]
        return fits(self.share, self.staying, resources, leaving)

    def host_has_room(self, *another: Resources) -> bool:
        """Whether its host is known to have room for all of its processes, and for other ones beside them."""
        left = self.room
        for each in (*self.processes.values(), *another) if left else ():
            if not left or not left.holds(each):
                return False
            left = left.without(each)
        return left is not None

    @property
    def staying(self) -> list[Resources]:
        """The resources of the processes that it hosts, without those that leave."""
        if not self.leaving:
            return list(self.processes.values())
        return [each for id, each in self.processes.items() if id not in self.leaving]

    @property
    def num_staying(self) -> int:
        """How many of its processes do not leave."""
        return len(self.processes) - len(self.leaving)

    @property
    def label(self) -> str:
        """Its name for the user."""
        return f"{self.id} on {self.host}" if self.host else self.id


class Home(msgspec.Struct, frozen=True):
    """What a fleet needs to know of its launcher. Its repr does not show the key."""

    run_id: str
    folder: Path
    settings: Settings
    address: Address
    passport: Passport | None
    issue: Callable[[str], ProcessCertificate] | None
    """Issues certificates; None if no host speaks TLS."""
    run_key: str = ""
    """The key from which the keys of all services of the run follow; see `transport/tokens.py`."""

    def __repr__(self) -> str:
        return f"Home(run_id={self.run_id!r}, address={self.address!r})"
