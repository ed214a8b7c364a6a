"""How the workers of a pool are made, and how often they may repeat a task."""

from __future__ import annotations

import msgspec

from ropewalk.pool.constants import Constant
from ropewalk.processes.owner import ProcessSpec


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a pool's workers are made; the names are those of the arguments of `Pool`, where they are explained."""

    process: ProcessSpec
    """The process of each worker, but for its rank."""
    initializer: Constant | None
    arguments: Constant | None
    """The tuple of the arguments of `initializer`."""
    units_per_worker: int | None
    """Number of units after which a worker is replaced; None sets no limit."""
    max_deaths: int
    at_most_once: bool
    output: str
    """The name under which the output of the workers is kept, but for their ranks."""

    @property
    def name(self) -> str:
        """The name of the pool, by which its workers are named."""
        return self.process.group
