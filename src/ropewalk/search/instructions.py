"""Instructions of a `SearchBook`, which `search_run` carries out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Begin:
    """Have a process work on a trial, from its newest checkpoint if there is one."""

    trial: int
    attempt: int
    """From 1 on."""
    budget: float | None


@dataclass(frozen=True, slots=True)
class StopTrial:
    """Have a running trial end at its next step."""

    trial: int


@dataclass(frozen=True, slots=True)
class TrialGivenUp:
    """A trial has failed for good."""

    trial: int
    why: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The search cannot succeed: every trial fails in the same way before it has reported anything."""

    why: str


Instruction = StopTrial | TrialGivenUp | Broken


__all__ = ["Begin", "Broken", "Instruction", "StopTrial", "TrialGivenUp"]
