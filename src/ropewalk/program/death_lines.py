"""The lines on the terminal that tell of the deaths of nodes: which replica, where, why, and what follows."""

from __future__ import annotations

import logging

from ropewalk.processes.death_warnings import DeathWarnings
from ropewalk.program.hosting import Hosting
from ropewalk.program.instructions import ProgramOutcome
from ropewalk.program.supervisor import Supervisor
from ropewalk.program.units import UnitReplica, Units
from ropewalk.supervision.failure import DeathRecord


class DeathLines:
    """Warns of deaths that a program survives; one that ends the program is told by its error. On the loop.

    Args:
        units: the units of the program.
        supervisor: knows what follows.
        logger: gets the warnings.
    """

    def __init__(self, units: Units, supervisor: Supervisor, logger: logging.Logger) -> None:
        self.is_quiet = False
        """Whether something else tells of them."""
        self._units = units
        self._supervisor = supervisor
        self._logger = logger
        self._warnings: DeathWarnings

    def begin(self, hosting: Hosting) -> None:
        """Set the hosting in which units run."""
        self._warnings = DeathWarnings(self._logger, hosting.loop, hosting.when_shown)

    @property
    def are_told(self) -> bool:
        """Whether a failure that was not asked for is told now."""
        return not self.is_quiet and self._supervisor.outcome is ProgramOutcome.RUNNING

    def failed(self, unit: UnitReplica, record: DeathRecord | None, cause: str, now: float) -> None:
        """A replica has failed, and the supervisor has decided what follows.

        Args:
            unit: the replica.
            record: of the death of its process; None if it had none.
            cause: why it failed, in words that follow its name.
            now: monotonic time in seconds.
        """
        if not self.are_told:
            return
        name = unit.name
        if record is None:
            told = f"{unit.label} {cause}"
        elif cause == record.ending:
            told = record.describe()
        else:
            told = f"{unit.label} on host {record.host} (pid {record.pid}) {cause}"
        peers = "ranks" if self._units.is_rank_group(name.unit) else "of its gang"
        follows = self._supervisor.sequel(name.unit, name.replica).in_words(peers)
        self._warnings.warn(name.unit, f"{told}; {follows}", now)

    def close(self) -> None:
        """Tell of the deaths that were not told one by one."""
        self._warnings.close()
