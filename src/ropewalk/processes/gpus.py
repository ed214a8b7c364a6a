"""The GPUs of a host share: a process that asks for some gets its own, and sees no others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from ropewalk.processes.messages import StartProcess

VISIBLE = "CUDA_VISIBLE_DEVICES"
_DRIVER = Path("/proc/driver/nvidia/gpus")
_DEVICES = Path("/dev")


class Gpus:
    """Which process has which GPU.

    Args:
        environment: environment of the agent; an engine that gave it some of a host's GPUs has named them there.
        driver: the folder in which the kernel's driver lists all of them.
        devices: the folder of their device files, counted where there is no such list, as in some containers.
    """

    def __init__(self, environment: Mapping[str, str], driver: Path = _DRIVER, devices: Path = _DEVICES) -> None:
        named = environment.get(VISIBLE)
        if named is not None:
            self._free = [name.strip() for name in named.split(",") if name.strip()]
        else:
            listed = driver.iterdir() if driver.is_dir() else devices.glob("nvidia[0-9]*")
            self._free = [str(number) for number, _ in enumerate(listed)]
        self.count = len(self._free)
        """How many GPUs there are, free or not."""
        self._given: dict[str, list[str]] = {}

    def give(self, start: StartProcess) -> StartProcess:
        """Return the request with the process's own GPUs in its environment, as many as are free.

        None are visible if a bounded process asks for none. The request is unchanged if a process that is not bounded
        asks for none, if it names some itself, or if the host has none.
        """
        if not self.count or VISIBLE in start.environment or not (start.gpus or start.bounded):
            return start
        given, self._free = self._free[: start.gpus], self._free[start.gpus :]
        self._given[start.id] = given
        return msgspec.structs.replace(start, environment={**start.environment, VISIBLE: ",".join(given)})

    @property
    def num_free(self) -> int:
        """Return how many GPUs are free."""
        return len(self._free)

    def users(self) -> str:
        """Return the names of the processes that have GPUs."""
        return ", ".join(sorted(id.rpartition("#")[0] for id, names in self._given.items() if names))

    def take_back(self, id: str) -> None:
        """Take back the GPUs of a process that has ended; may be called twice."""
        self._free = sorted([*self._free, *self._given.pop(id, [])])
