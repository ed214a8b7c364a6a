"""`RunIdentity`: what a run is, before it has done anything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What a run is, before it has done anything."""

    id: str
    project: str
    name: str
    folder: Path
    """Folder of its checkpoints, artifacts and images."""
    attempt: int = 1
    """Number of the process that works on it, from 1 on."""
    seed: int | None = None
    forked_from: Path | None = None
    """Folder of the run whose checkpoint it begins with, until it has one of its own."""
    forked_at: float | None = None
    """Step of that checkpoint; None: the newest."""


__all__ = ["RunIdentity"]
