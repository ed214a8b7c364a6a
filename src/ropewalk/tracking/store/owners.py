"""Lost runs: those that are said to run, while the process that writes them is gone.

    the owner was on this host, and this kernel has counted its process id
        the process is there, and began when the owner did          it runs
        there is no such process                                    lost
        another process has the id                                  lost after 60 s of silence
    any other host, or this one before it was started again         lost after 60 s of silence

A writer repeats its `OwnerIs` every 20 s, so a run that logs nothing for hours is heard all the same.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, field

from ropewalk.atomic_files import boot_id
from ropewalk.process_start import start_ticks
from ropewalk.tracking.records import OwnerIs

SILENT_S = 60.0
"""Silence after which the owner of a run counts as gone, unless its process is there."""


@dataclass(frozen=True, slots=True)
class LocalProcesses:
    """The processes of this host, as far as they are asked for; each is looked up once.

    Attributes:
        host: name of this host.
        boot: boot id of its kernel; empty if it is not known.
        start_ticks: returns when a process started, in clock ticks since the boot; 0 if it has ended.
    """

    host: str = field(default_factory=platform.node)
    boot: str = field(default_factory=boot_id)
    start_ticks: Callable[[int], int] = start_ticks
    _known: dict[int, int] = field(default_factory=dict[int, int])

    def is_gone(self, owner: OwnerIs, silence_s: float) -> bool:
        """Decide whether the process that writes a run is gone.

        Args:
            owner: that process.
            silence_s: seconds since a record of the run was stored.
        """
        if owner.host != self.host or not self.boot or owner.boot != self.boot:
            return silence_s > SILENT_S
        if owner.pid not in self._known:
            self._known[owner.pid] = self.start_ticks(owner.pid)
        started = self._known[owner.pid]
        return not started or (started != owner.start_ticks and silence_s > SILENT_S)
