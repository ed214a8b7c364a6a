"""The CPUs of a host share: a process that is bound gets the least used ones. Pure bookkeeping."""

from __future__ import annotations

import math
from collections.abc import Iterable


class Cpus:
    """Which process is bound to which CPU.

    Args:
        numbers: of the CPUs that there are to give; none where a process cannot be bound.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self._numbers = sorted(numbers)
        self._given: dict[str, tuple[tuple[int, ...], float]] = {}
        """To each process: its CPUs, and the part of each that it asked for."""

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._numbers)

    def give(self, id: str, count: float) -> tuple[int, ...]:
        """The CPUs for a process: as many as it asks for, rounded up, the least used first.

        A CPU is shared when there are no unused ones, or by processes that ask for a part of it.
        All of them for a process that asks for more than there are.
        """
        num_cpus = min(math.ceil(count), self.count)
        if not num_cpus:
            return ()
        load = dict.fromkeys(self._numbers, 0.0)
        for chosen, part in self._given.values():
            for number in chosen:
                load[number] += part
        # Sorting keeps the order of equals, and neighbours share caches.
        chosen = tuple(sorted(sorted(self._numbers, key=load.__getitem__)[:num_cpus]))
        self._given[id] = chosen, count / num_cpus
        return chosen

    def take_back(self, id: str) -> None:
        """A process has ended; may be called twice."""
        self._given.pop(id, None)
