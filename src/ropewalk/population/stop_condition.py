"""When a run has done enough. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ropewalk.argument_kinds import check_number
from ropewalk.population.rows import Row

Until = Callable[[Row], object] | Mapping[str, float]


@dataclass(frozen=True, slots=True)
class StopCondition:
    """Ends a run after a number of generations, or at a row.

    Args:
        generations: total number of generations; None for no limit.
        until: a function of a row, or the least values of columns; None for no such condition.

    Raises:
        TypeError: a condition is of another type.
        ValueError: there are less than one generation.
    """

    generations: int | None
    until: Until | None

    def __post_init__(self) -> None:
        if self.until is not None and not callable(self.until) and not isinstance(self.until, Mapping):
            raise TypeError(
                f"until must be a function of a row, or columns with their least values, not {self.until!r}"
            )
        check_number("generations", self.generations, int, "a whole number", least=1)

    @property
    def is_none(self) -> bool:
        """Whether there is no condition at all."""
        return self.generations is None and self.until is None

    @property
    def needs_tests(self) -> bool:
        """Whether the condition is about the column of tests."""
        return self.until is not None and not callable(self.until) and "test" in self.until

    def is_met(self, generation: int, row: Row) -> bool:
        """Return whether a run has done enough.

        Args:
            generation: of the algorithm.
            row: the newest row.

        Raises:
            ValueError: the condition names a column that this run does not have.
        """
        if self.generations is not None and generation >= self.generations:
            return True
        if self.until is None:
            return False
        if callable(self.until):
            return bool(self.until(row))
        for name in self.until:
            if name not in row and name != "test":  # some rows have no test
                raise ValueError(f"until asks for the column {name!r}, and the rows of this run have {', '.join(row)}")
        return all(row.get(name, float("-inf")) >= least for name, least in self.until.items())


__all__ = ["StopCondition", "Until"]
