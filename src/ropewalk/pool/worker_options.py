"""How the workers of a pool are made, and how often they may repeat a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ropewalk.engines.resources import Resources
from ropewalk.pool.constants import Constant


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a pool's workers are made; the names are those of the arguments of `Pool`, where they are explained."""

    name: str
    """The name of the pool, by which its workers are named."""
    resources: Resources
    preload: tuple[str, ...]
    environment: Mapping[str, str]
    initializer: Constant | None
    arguments: Constant | None
    """The tuple of the arguments of `initializer`."""
    units_per_worker: int | None
    """Number of units after which a worker is replaced; None sets no limit."""
    task_timeout_s: float | None
    max_deaths: int
    at_most_once: bool
