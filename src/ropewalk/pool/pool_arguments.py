"""The arguments of a pool that are checked before anything starts, and the size that some of them describe."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, NamedTuple

from ropewalk.argument_kinds import check_callable, check_kind, check_number

if TYPE_CHECKING:
    from ropewalk.pool.scaling import Elasticity


def check_worker_arguments(
    initializer: Callable[..., object] | None,
    maxtasksperchild: int | None,
    max_deaths: int,
    task_timeout_s: float | None,
    preload: Sequence[str],
    environment: Mapping[str, str] | None,
    name: str | None,
) -> None:
    """Check those arguments of `Pool` that need no session, before one is opened.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of its range.
    """
    if isinstance(preload, str):
        raise TypeError(f"preload must be a list of module names, not the string {preload!r}; write [{preload!r}]")
    check_kind("preload", preload, Iterable, '["torch"]', required=True)
    check_number("max_deaths", max_deaths, Integral, "a whole number", least=1, required=True)
    check_number("task_timeout_s", task_timeout_s, Real, "a number of seconds", above=0)
    check_kind("environment", environment, Mapping, 'variables by name, {"OMP_NUM_THREADS": "1"}')
    check_kind("name", name, str, 'a text, "simulate"')
    if maxtasksperchild is not None and (not isinstance(maxtasksperchild, int) or maxtasksperchild <= 0):
        raise ValueError(f"maxtasksperchild must be a positive int or None, not {maxtasksperchild!r}")
    check_callable("initializer", initializer, "a function")


class PoolSize(NamedTuple):
    """How many workers a pool has; made by `of`, which checks it."""

    processes: int | None
    """The number at the start, if it was given."""
    bounds: tuple[int, int | None] | None
    """The fewest and the most workers (None stands for the number of CPUs); None for a pool of a fixed size."""
    idle_s: float
    """Seconds for which there has to be less to do before an elastic pool shrinks."""

    @classmethod
    def of(cls, processes: int | None, least: int | None, most: int | None, idle_s: float) -> PoolSize:
        """Return the size that these arguments of `Pool` describe.

        Raises:
            ValueError: a number is out of its range, or the numbers contradict each other.
            TypeError: a number is something else.
        """
        check_number("idle_s", idle_s, Real, "a number of seconds", least=0, required=True)
        if processes is not None and not hasattr(processes, "__index__"):
            raise TypeError(f"processes is {processes!r}, of type {type(processes).__name__}; give a whole number")
        if processes is not None and operator.index(processes) < 1:
            raise ValueError(f"Number of processes must be at least 1, not {processes}")
        if least is None and most is None:
            return cls(processes, None, idle_s)
        least = (1 if processes is None else processes) if least is None else operator.index(least)
        most = processes if most is None else operator.index(most)
        begin = least if processes is None else processes
        if not (0 <= least <= begin and (most is None or max(1, begin) <= most)):
            raise ValueError(
                "a pool needs 0 <= min_processes <= processes <= max_processes and at least 1 of the last, not "
                f"min_processes={least}, processes={processes}, max_processes={most}"
            )
        return cls(processes, (least, most), idle_s)

    def start(self, default: int) -> tuple[int, Elasticity | None]:
        """Return the number of workers to begin with, and what changes that number.

        Args:
            default: the number of CPUs that the pool may use.
        """
        if self.bounds is not None:
            from ropewalk.pool.scaling import Elasticity  # not before the interpreter of the agent starts

            least, most = self.bounds
            most = max(least, default) if most is None else most
            return (least if self.processes is None else self.processes), Elasticity(least, most, self.idle_s)
        if self.processes is not None:
            return self.processes, None
        wish = os.environ.get("ROPEWALK_WORKERS", "")
        return (int(wish) if wish.isdigit() and int(wish) > 0 else default), None
