"""What a host gives its processes: GPUs of their own; and to bounded ones CPUs, and no more than they asked for.

    StartProcess(bounded, cpus, gpus) ──▶ refusal: "asks for 8 CPUs, n1 has 2"
                                     └──▶ given: cpu_numbers, CUDA_VISIBLE_DEVICES

Memory is only counted here; `memory_limit.py` enforces its limits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable

import msgspec

from ropewalk.engines.resources import usable_cpus, usable_memory
from ropewalk.processes.gpus import VISIBLE, Gpus
from ropewalk.processes.messages import StartProcess
from ropewalk.quantities import shown_size

_LARGER = "ask for less, or use an engine whose hosts have more"
_PAGES = 64 * 1024
"""The kernel rounds the limit of a control group down to whole pages, which have at most this many bytes."""


class Cpus:
    """Which process is bound to which CPU: a bounded process gets the least used ones. Pure bookkeeping.

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


class Bounds:
    """The CPUs, GPUs and memory of a host share, and which process has which of them.

    Args:
        host: name of the host.
        cpus: the CPUs to bind processes to.
        gpus: the GPUs to give to processes.
        num_cpus: how many of the CPUs may be kept busy.
        memory_bytes: size of the memory.
    """

    def __init__(self, host: str, cpus: Cpus, gpus: Gpus, num_cpus: int, memory_bytes: int) -> None:
        self._host = host
        self._cpus = cpus
        self._gpus = gpus
        self._num_cpus = num_cpus
        self._memory_bytes = memory_bytes

    @classmethod
    def here(cls, host: str) -> Bounds:
        """Return the bounds of this process, by its affinity, its control groups and its environment."""
        return cls(host, Cpus(os.sched_getaffinity(0)), Gpus(os.environ), usable_cpus(), usable_memory())

    def refusal(self, start: StartProcess) -> str:
        """Return why a process cannot have what it asks for here; "" if it can.

        One that is not bounded shares the CPUs, and is refused more memory than there is, and GPUs that others have.
        Where this host knows of no GPUs, which may be a mistake of the host, it has to find its own.
        """
        if start.memory_bytes >= self._memory_bytes + _PAGES:
            asked, has = shown_size(start.memory_bytes), shown_size(self._memory_bytes)
            return self._missing(start, "memory", f"{asked} of memory", f"{has}; {_LARGER}")
        if not start.bounded:
            return self._gpu_refusal(start) if self._gpus.count else ""
        if math.floor(start.cpus) > self._num_cpus:  # half a CPU more is a quota that was counted in whole CPUs
            return self._missing(start, "cpus", f"{start.cpus:g} CPUs", f"{self._num_cpus}; {_LARGER}")
        return self._gpu_refusal(start)

    def _gpu_refusal(self, start: StartProcess) -> str:
        if VISIBLE in start.environment:
            return ""
        if start.gpus > self._gpus.count:
            has = f"{self._gpus.count} (by its driver, or {VISIBLE})"
            return self._missing(start, "gpus", f"{start.gpus} GPUs", f"{has}; {_LARGER}")
        if start.gpus > self._gpus.num_free:
            left = f"{self._gpus.num_free} of {self._gpus.count} left"
            way_out = f"wait for the end of {self._gpus.users()}, or start fewer"
            return self._missing(start, "gpus", f"{start.gpus} GPUs", f"{left}; {way_out}")
        return ""

    def give(self, start: StartProcess) -> StartProcess:
        """Return the request with the CPUs and GPUs that the process gets."""
        start = self._gpus.give(start)
        if start.bounded:
            start = msgspec.structs.replace(start, cpu_numbers=self._cpus.give(start.id, start.cpus))
        return start

    def take_back(self, id: str) -> None:
        """Take back the CPUs and GPUs of a process that has ended; may be called twice."""
        self._cpus.take_back(id)
        self._gpus.take_back(id)

    def _missing(self, start: StartProcess, name: str, asked: str, has: str) -> str:
        said = f"requires({name}=...)" if start.bounded else f"{name}="
        return f"{start.name} asks for {asked} ({said}), and {self._host} has {has}"
