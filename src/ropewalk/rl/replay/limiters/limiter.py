"""`RateLimiter`: the one formula that decides when a table may be inserted into and sampled from.

With counts of a table's items that were inserted, deleted and sampled, and size = inserts - deletes:

    may_sample(n)   size >= min_size and inserts * samples_per_insert - samples - n >= min_diff
    may_insert(n)   size + n <= min_size or (inserts + n) * samples_per_insert - samples <= max_diff

The difference inserts * samples_per_insert - samples is the number of samples that are still owed. All limiters are
this formula with other numbers, as in Reverb (Cassirer 2021, https://arxiv.org/abs/2102.04736, section 2.4).
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(slots=True)
class TableCounts:
    """How many items of a table were inserted, deleted and sampled, since it was made or reset.

    Attributes:
        inserts: items that came in.
        deletes: items that left, for whatever reason.
        samples: items that were sampled: a batch of 64 counts 64.
    """

    inserts: int = 0
    deletes: int = 0
    samples: int = 0

    @property
    def size(self) -> int:
        """Number of items that are in the table."""
        return self.inserts - self.deletes


class Limiter(ABC):
    """Settings of a limiter."""

    @abstractmethod
    def formula(self) -> RateLimiter:
        """Return the numbers of the one formula.

        Raises:
            ValueError: they would block both sides for ever.
        """


@dataclass(frozen=True, slots=True)
class RateLimiter(Limiter):
    """The formula; see the module. The other limiters choose its numbers.

    Args:
        samples_per_insert: how many samples each insertion adds to those that are owed; positive.
        min_size: items that the table must have before it is sampled; at least 1.
        min_diff: samples owed below which nothing is sampled.
        max_diff: samples owed above which nothing is inserted.

    Raises:
        ValueError: one side would always wait for the other.
    """

    samples_per_insert: float
    min_size: int
    min_diff: float = -math.inf
    max_diff: float = math.inf

    def __post_init__(self) -> None:
        spi = self.samples_per_insert
        if not (math.isfinite(spi) and spi > 0):
            raise ValueError(f"samples_per_insert is {spi}; it must be a positive number")
        if self.min_size < 1:
            raise ValueError(
                f"min_size is {self.min_size}; it must be at least 1: an empty table has nothing to sample"
            )
        if not self.max_diff - self.min_diff >= self._least_room():
            raise ValueError(
                f"the limiter leaves {self.max_diff - self.min_diff:g} samples between min_diff={self.min_diff:g} and "
                f"max_diff={self.max_diff:g}, but needs at least {self._least_room():g} with "
                f"samples_per_insert={spi:g}, or inserting and sampling could wait for each other; use bounds that "
                "are further apart"
            )
        if self.min_diff > spi * self.min_size:
            raise ValueError(
                f"min_diff={self.min_diff:g} exceeds samples_per_insert * min_size = {spi:g} * {self.min_size} = "
                f"{spi * self.min_size:g}: a table that has just reached min_size could not be sampled"
            )
        if self.max_diff < spi * self.min_size:
            warnings.warn(
                f"max_diff={self.max_diff:g} is below samples_per_insert * min_size = {spi:g} * {self.min_size} = "
                f"{spi * self.min_size:g}: after the table has reached min_size, inserting waits for samples",
                stacklevel=3,  # past the constructor that dataclasses make
            )

    def formula(self) -> RateLimiter:
        """Return itself."""
        return self

    def _least_room(self) -> float:
        """Return the least max_diff - min_diff with which no count of owed samples, D, blocks both sides.

        Both are blocked by max_diff - spi < D < min_diff + 1. Where D and the bounds are whole numbers, that needs
        max_diff - min_diff < spi; otherwise max_diff - min_diff < spi + 1.
        """
        numbers = (self.samples_per_insert, self.min_diff, self.max_diff)
        whole = all(math.isfinite(number) and number == int(number) for number in numbers)
        return self.samples_per_insert if whole else self.samples_per_insert + 1

    def owed(self, counts: TableCounts) -> float:
        """Return how many samples are owed for the items that were inserted; negative if more were taken."""
        return counts.inserts * self.samples_per_insert - counts.samples

    def may_insert(self, counts: TableCounts, num_items: int = 1) -> bool:
        """Return whether `num_items` may be inserted now."""
        return (
            counts.size + num_items <= self.min_size
            or self.owed(counts) + num_items * self.samples_per_insert <= self.max_diff
        )

    def admits(self, counts: TableCounts, num_items: int) -> bool:
        """Return whether an insertion of `num_items` at once may be done now.

        That is `may_insert`, or otherwise that one item may be inserted and none sampled: more room would never come.
        Then the bounds are exceeded by less than one insertion.
        """
        if num_items == 0 or self.may_insert(counts, num_items):
            return True
        return self.may_insert(counts) and not self.may_sample(counts)

    def may_sample(self, counts: TableCounts, num_items: int = 1) -> bool:
        """Return whether `num_items` may be sampled now."""
        return counts.size >= self.min_size and self.owed(counts) - num_items >= self.min_diff

    def num_samples(self, counts: TableCounts, at_most: int) -> int:
        """Return the largest number up to `at_most` that may be sampled now."""
        if counts.size < self.min_size:
            return 0
        room = self.owed(counts) - self.min_diff
        return at_most if room >= at_most else max(0, math.floor(room))


__all__ = ["Limiter", "RateLimiter", "TableCounts"]
