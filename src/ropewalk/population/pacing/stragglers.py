"""Policies for the last evaluations of a generation, during which all other workers are idle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ropewalk.near_names import check_choice

StragglerAction = Literal["wait", "drop", "carry"]


@dataclass(frozen=True, slots=True)
class StragglerPolicy:
    """The policy for the last evaluations of a generation; created by `wait`, `drop` or `carry`.

    Example:
        >>> StragglerPolicy.drop(after=0.9)
        StragglerPolicy(action='drop', after=0.9, grace=0.25)

    Args:
        action: "wait" for every evaluation; "drop" the last ones; "carry" them over to a later generation.
        after: share of the generation that must have ended before the rest may be given up, above 0 and at most 1.
        grace: additional time for the rest, as a multiple of the time that the generation took until then; 0 or more.

    Raises:
        ValueError: a value is outside its range.
    """

    action: StragglerAction = "wait"
    after: float = 1.0
    grace: float = 0.0

    def __post_init__(self) -> None:
        check_choice("action", self.action, get_args(StragglerAction))
        if not 0 < self.after <= 1:
            raise ValueError(f"after is a share of a generation, above 0 and at most 1, not {self.after}")
        if not self.grace >= 0:
            raise ValueError(f"grace is 0 or more times the time of a generation so far, not {self.grace}")

    @classmethod
    def wait(cls) -> StragglerPolicy:
        """Wait for every evaluation. Then a run is bit-identical on any workers."""
        return cls("wait")

    @classmethod
    def drop(cls, after: float = 0.9, grace: float = 0.25) -> StragglerPolicy:
        """Drop the last evaluations: they are not told, and those that have not begun never run.

        A running evaluation continues until it ends or exceeds the pool's `task_timeout_s`; its outcome is ignored.

        Args:
            after: share of the generation that must have ended first, above 0 and at most 1.
            grace: additional time for the rest, as a multiple of the time that the generation took until then.
        """
        return cls("drop", after, grace)

    @classmethod
    def carry(cls, after: float = 0.9, grace: float = 0.25) -> StragglerPolicy:
        """Continue without the last evaluations, and tell them with a later generation, once they have ended.

        The algorithm decides how to use such stale results (`OpenAIES(max_age=...)`).

        Args:
            after: share of the generation that must have ended first, above 0 and at most 1.
            grace: additional time for the rest, as a multiple of the time that the generation took until then.
        """
        return cls("carry", after, grace)
