"""What happens to the last evaluations of a generation, while all other workers have nothing to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for every evaluation. Then a run is the same, bit for bit, on any workers."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Do without the last ones: they are not told, and what of them has not begun never runs.

    One that runs goes on until it ends or the pool's `task_timeout_s` ends it; nobody hears of it.

    Args:
        share: of the generation that has to be there, from 0 to 1.
        patience: from then on, wait so many times as long as the generation took until then.
    """

    share: float = 0.9
    patience: float = 0.25

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True)
class Carry:
    """Go on without the last ones, and tell them with a later generation, when they are there.

    The algorithm decides what such a stale result is worth to it (`OpenAIES(max_age=...)`).

    Args:
        share: as of `Drop`.
        patience: as of `Drop`.
    """

    share: float = 0.9
    patience: float = 0.25

    def __post_init__(self) -> None:
        _check(self)


Stragglers = Wait | Drop | Carry


def _check(rule: Drop | Carry) -> None:
    if not 0 < rule.share <= 1:
        raise ValueError(f"share of a generation to wait for must be above 0 and at most 1, not {rule.share}")
    if rule.patience < 0:
        raise ValueError(f"patience must be 0 or more times the time of a generation so far, not {rule.patience}")
