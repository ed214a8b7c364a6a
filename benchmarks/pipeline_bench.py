"""What rows of the table of pipelines share: blocks of consecutive steps in turn, and slopes over micro-batches."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline_contenders import Contender, Took
from pool_rows import Line, milliseconds

Mean = Callable[[Sequence[float]], float]

_BLOCKS_OF_A_ROUND = 5


@dataclass(frozen=True, slots=True)
class Steps:
    """What a step of one contender took: medians or means over blocks of consecutive steps."""

    wall_s: float
    #: Of all its processes.
    cpu_s: float

    def __str__(self) -> str:
        return f"{milliseconds(self.wall_s)} (CPU {milliseconds(self.cpu_s)})"


@dataclass(frozen=True, slots=True)
class Bench:
    """How thoroughly to measure."""

    repeats: int = 5
    quick: bool = False

    @property
    def num_steps(self) -> int:
        """Consecutive steps of a block."""
        return 2 if self.quick else 20

    @property
    def rounds(self) -> int:
        """Of five blocks each."""
        return min(2, self.repeats) if self.quick else self.repeats

    def steps(
        self, contenders: Mapping[str, Contender], *, rounds: int | None = None, of: Mean = statistics.median
    ) -> dict[str, Steps]:
        """Blocks of steps in turn (A B C, B C A, ...), after some that warm up.

        Blocks are short, because the machine's speed changes within seconds: all contenders see every change.

        Args:
            contenders: by name.
            rounds: instead of the bench's.
            of: of all blocks of one contender: a mean where a cost comes once in dozens of steps, which a median would
                leave out.
        """
        names = list(contenders)
        seen: dict[str, list[Took]] = {name: [] for name in names}
        for name in names:
            contenders[name].steps(3)
        for turn in range(_BLOCKS_OF_A_ROUND * (rounds or self.rounds)):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                time.sleep(0.05)  # lets the one before come to rest
                seen[name].append(contenders[name].steps(self.num_steps))
        return {name: self._step(tooks, of) for name, tooks in seen.items()}

    def _step(self, tooks: list[Took], of: Mean) -> Steps:
        wall_s, cpu_s = (of([took[at] for took in tooks]) / self.num_steps for at in (0, 1))
        return Steps(wall_s, cpu_s)


#: Measures, and gives lines.
Row = Callable[[Bench], Iterator[Line]]


def slope(points: Mapping[int, float]) -> float:
    """Of the straight line with the least squares."""
    return statistics.linear_regression(list(points), list(points.values())).slope


def with_load(line: Line) -> Line:
    """The line, with how busy the machine was when it was measured."""
    line.values["load"] = f"{os.getloadavg()[0]:.1f}"
    return line
