"""The CPUs of a host share: a bounded process gets the least used ones. Pure bookkeeping."""

from __future__ import annotations

import math
from collections.abc import Iterable


class Cpus:
    """Which process is bound to which CPU.

    Args:
        numbers: numbers of the CPUs that can be given; none where a process cannot be bound.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self._numbers = sorted(numbers)
        self._given: dict[str, tuple[tuple[int, ...], float]] = {}
        """For each process: its CPUs, and the fraction of each that it asked for."""

    @property
    def count(self) -> int:
        """How many CPUs there are."""
        return len(self._numbers)

    def give(self, id: str, count: float) -> tuple[int, ...]:
        """Choose CPUs for a process: as many as it asks for, rounded up, the least used first.

        A CPU is shared when no CPUs are unused, or by processes that ask for a fraction of it. A process that asks for
        more CPUs than there are gets all of them.
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
        """Take back the CPUs of a process that has ended; may be called twice."""
        self._given.pop(id, None)
