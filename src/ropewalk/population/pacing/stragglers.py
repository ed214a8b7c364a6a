"""What happens to the last evaluations of a generation, while all other workers have nothing to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

StragglerAction = Literal["wait", "drop", "carry"]


@dataclass(frozen=True, slots=True)
class StragglerPolicy:
    """What becomes of the last evaluations of a generation; made by `wait`, `drop` or `carry`.

    Example:
        >>> StragglerPolicy.drop(after=0.9)
        StragglerPolicy(action='drop', after=0.9, grace=0.25)

    Args:
        action: "wait" for every evaluation; "drop" the last ones; "carry" them over to a later generation.
        after: share of the generation that must have ended before the rest may be left, above 0 and at most 1.
        grace: how much longer the rest may take, as a multiple of the time that the generation took until then; 0 or
            more.

    Raises:
        ValueError: a value is outside of its range.
    """

    action: StragglerAction = "wait"
    after: float = 1.0
    grace: float = 0.0

    def __post_init__(self) -> None:
        if self.action not in get_args(StragglerAction):
            raise ValueError(f"action is one of {', '.join(get_args(StragglerAction))}, not {self.action!r}")
        if not 0 < self.after <= 1:
            raise ValueError(f"after is a share of a generation, above 0 and at most 1, not {self.after}")
        if not self.grace >= 0:
            raise ValueError(f"grace is 0 or more times the time of a generation so far, not {self.grace}")

    @classmethod
    def wait(cls) -> StragglerPolicy:
        """Wait for every evaluation. Then a run is the same, bit for bit, on any workers."""
        return cls("wait")

    @classmethod
    def drop(cls, after: float = 0.9, grace: float = 0.25) -> StragglerPolicy:
        """Leave the last ones out: they are not told, and an evaluation of them that has not begun never runs.

        One that runs goes on until it ends or the pool's `task_timeout_s` ends it; its outcome is ignored.
        """
        return cls("drop", after, grace)

    @classmethod
    def carry(cls, after: float = 0.9, grace: float = 0.25) -> StragglerPolicy:
        """Go on without the last ones, and tell them with a later generation, when they are there.

        The algorithm decides what such a stale result is worth to it (`OpenAIES(max_age=...)`).
        """
        return cls("carry", after, grace)
