"""Autotune: finds bucket size, and how much a compressor omits, by measuring steps.

    ask() ─▶ {"bucket_bytes": 26214400} ─▶ some steps ─▶ tell(seconds, allowed) ─▶ ask() ─▶ ... until `done`

Coordinate descent on ladders of values: from the current point it tries the neighbours of one knob, moves on while a
neighbour is clearly faster, and then takes the next knob, until no neighbour of any knob is. Horovod tunes fusion by
Bayesian optimization; on ladders of ten values that costs more steps than trying neighbours.

`Autotune` is pure and knows no clock. `AgreedAutotune` measures a window of steps and lets rank 0 decide for all,
because members that measure for themselves would arrive at different buckets.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.groups.group import Group

BUCKET_SIZES = tuple(float(1 << power) for power in range(18, 28))
"""Bucket sizes in bytes that are tried, 256 KiB to 128 MiB."""

FACTORS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Factors of GD-SEC's threshold that are tried."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting that can be tuned.

    Attributes:
        name: name of the setting.
        values: the possible values, ascending.
        start: the value to begin with, one of `values`.
    """

    name: str
    values: tuple[float, ...]
    start: float

    def __post_init__(self) -> None:
        if not self.values or list(self.values) != sorted(set(self.values)):
            raise ExchangeInvalid(f"values of {self.name} must ascend, each once; they are {list(self.values)}")
        if self.start not in self.values:
            raise ExchangeInvalid(f"{self.name} cannot start at {self.start}, which is none of {list(self.values)}")


class Autotune:
    """Searches for the fastest values, by ask and tell.

    Args:
        knobs: tuned one after the other, again and again until nothing is better.
        margin: fraction by which a value must be faster than the best so far, so that noise moves nothing.
    """

    def __init__(self, knobs: Sequence[Knob], margin: float = 0.03) -> None:
        if not knobs or len({knob.name for knob in knobs}) < len(knobs):
            raise ExchangeInvalid(f"autotune needs knobs of different names, not {[knob.name for knob in knobs]}")
        self._knobs = tuple(knobs)
        self._margin = margin
        self._seconds: dict[tuple[int, ...], float] = {}
        self._best = tuple(knob.values.index(knob.start) for knob in knobs)
        self._asked: tuple[int, ...] | None = self._best
        self._knob = 0
        self._settled = 0  # knobs in a row without a better neighbour

    @property
    def done(self) -> bool:
        """Whether no neighbour of the best values is better."""
        return self._asked is None

    def ask(self) -> dict[str, float]:
        """Return the values to measure next; the best ones when `done`."""
        return self._values(self._best if self._asked is None else self._asked)

    @property
    def best(self) -> dict[str, float]:
        """The best values so far."""
        return self._values(self._best)

    def tell(self, seconds: float, *, allowed: bool = True) -> None:
        """Report the cost of the values that `ask` returned.

        Args:
            seconds: duration of a step.
            allowed: False if these values must not be chosen however fast they are, such as a factor under which
                compression keeps back too much.
        """
        if self._asked is None:
            return
        point, first = self._asked, not self._seconds
        self._seconds[point] = seconds if allowed else math.inf
        if not first and self._seconds[point] < self._seconds[self._best] * (1 - self._margin):
            self._best, self._settled = point, 0
        self._asked = self._next()

    def _next(self) -> tuple[int, ...] | None:
        """Return a neighbour that was not measured yet, of this knob or the next ones."""
        while self._settled < len(self._knobs):
            for shift in (1, -1):
                index = self._best[self._knob] + shift
                point = (*self._best[: self._knob], index, *self._best[self._knob + 1 :])
                if 0 <= index < len(self._knobs[self._knob].values) and point not in self._seconds:
                    return point
            self._settled += 1
            self._knob = (self._knob + 1) % len(self._knobs)
        return None

    def _values(self, point: Sequence[int]) -> dict[str, float]:
        return {knob.name: knob.values[index] for knob, index in zip(self._knobs, point, strict=True)}


def bucket_size_knob(start: float) -> Knob:
    """Return the knob of the bucket size, in bytes, that begins at `start`."""
    return Knob("bucket_bytes", tuple(sorted({*BUCKET_SIZES, start})), start)


def factor_knob(start: float, can_be: Callable[[float], bool] = lambda factor: True) -> Knob:
    """Return the knob of GD-SEC's factor `c` that begins at `start`; `can_be` filters the other values."""
    return Knob("c", tuple(sorted({*(factor for factor in FACTORS if can_be(factor)), start})), start)


class AgreedAutotune:
    """One tuner for all members: rank 0 measures and decides, the others follow.

    Args:
        autotune: the tuner; only that of rank 0 counts.
        group: the members, which call this at the same steps, between two exchanges.
        window: number of steps per measurement; the first of them is not counted, because it makes new buckets.
    """

    def __init__(self, autotune: Autotune, group: Group, window: int = 10) -> None:
        if window < 2:
            raise ExchangeInvalid(f"a window has at least 2 steps, because the first is not counted; not {window}")
        self._autotune = autotune
        self._group = group
        self._window = window
        self._names = tuple(autotune.ask())
        self._seconds: list[float] = []
        self._allowed = True
        self.done = False

    def after_step(self, seconds: float, *, allowed: bool = True) -> Mapping[str, float] | None:
        """Record the duration of a step.

        Args:
            seconds: duration of the step on this member.
            allowed: whether the effect of the step is acceptable, see `Autotune.tell`.

        Returns:
            The values to use from now on, at the end of each window; None within a window, and when nothing is left to
            try.
        """
        if self.done:
            return None
        self._seconds.append(seconds)
        self._allowed = self._allowed and allowed
        if len(self._seconds) < self._window:
            return None
        decided = torch.zeros(1 + len(self._names), dtype=torch.float64)
        if self._group.rank == 0:
            self._autotune.tell(statistics.median(self._seconds[1:]), allowed=self._allowed)
            values = self._autotune.ask()
            decided.copy_(torch.tensor([float(self._autotune.done), *values.values()], dtype=torch.float64))
        self._group.broadcast(decided, 0, "autotune")
        self._seconds, self._allowed = [], True
        done, *values = decided.numpy().tolist()
        self.done = bool(done)
        return dict(zip(self._names, values, strict=True))
