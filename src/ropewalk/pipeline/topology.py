"""A topology: the devices to plan for, and the links between them, level by level from the inside out.

`4x8@12GBps,1.25GBps` is 4 devices in a server, joined at 12 GB/s, and 8 servers, joined
at 1.25 GB/s:

    level 1   [0 1 2 3] [4 5 6 7] ... [28 29 30 31]     12 GB/s, inside a server
    level 2   └─────────── 8 servers ────────────┘      1.25 GB/s, between servers

A bandwidth is that of one device's port in each direction, in bytes per second: a transfer
uses the sender's port out and the receiver's port in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ropewalk.errors import TopologyInvalid

_MOST_DEVICES = 1_000_000
"""Devices of a topology at most: planning makes lists of them all."""


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """A kind of device."""

    name: str = "device"
    speed: float = 1.0
    """Speed relative to the device of the profile: 2.0 computes twice as fast."""
    memory_bytes: int | None = None
    """Memory for the model, in bytes; None: not limited."""


@dataclass(frozen=True, slots=True)
class Level:
    """`count` components of the level below, joined by links of one bandwidth."""

    count: int
    bandwidth: float = math.inf
    """Bytes per second that one device can send, and at the same time receive, at this level. `inf`: links are free."""
    latency_s: float = 0.0
    """Seconds from the sending of the last byte to its arrival."""


@dataclass(frozen=True)
class Topology:
    """Devices 0, 1, ... in nested levels.

    Args:
        levels: the levels, from the inside out.
        kinds: at most 4 kinds of devices.
        kind_of: the index of each device's kind; empty: all devices are of the first kind.

    Raises:
        TopologyInvalid: there is no device or more than a million, a bandwidth is not above 0, a latency is negative, a
            kind is unknown or has a speed or memory out of range, or there are more than 4 kinds.
    """

    levels: tuple[Level, ...]
    kinds: tuple[DeviceKind, ...] = (DeviceKind(),)
    kind_of: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def num_devices(self) -> int:
        """The number of devices in all levels together."""
        return math.prod(level.count for level in self.levels)

    @cached_property
    def component_sizes(self) -> tuple[int, ...]:
        """The number of devices in one component of each level: (4, 32) for `4x8`."""
        sizes: list[int] = []
        for level in self.levels:
            sizes.append(level.count * (sizes[-1] if sizes else 1))
        return tuple(sizes)

    def kind(self, device: int) -> DeviceKind:
        """Return the kind of a device."""
        return self.kinds[self.kind_of[device]] if self.kind_of else self.kinds[0]

    def devices_of(self, kind: int) -> tuple[int, ...]:
        """Return the devices of the kind with this index, in order."""
        if not self.kind_of:
            return tuple(range(self.num_devices)) if kind == 0 else ()
        return tuple(device for device, of in enumerate(self.kind_of) if of == kind)

    def level_between(self, one: int, other: int) -> Level:
        """Return the innermost level that joins two devices (for a device and itself, the first level).

        Raises:
            IndexError: the topology does not have these devices.
        """
        for level, size in zip(self.levels, self.component_sizes, strict=True):
            if one // size == other // size:
                return level
        raise IndexError(f"no devices {one} and {other} among {self.num_devices}")

    def level_of(self, devices: tuple[int, ...]) -> Level:
        """Return the innermost level that joins all of these devices."""
        return self.level_between(min(devices), max(devices))

    def nests(self, devices: tuple[int, ...]) -> bool:
        """Return whether, at each level, these devices lie inside one component or form whole components."""
        size_below = 1
        first, last, num = min(devices), max(devices) + 1, len(devices)
        for size in self.component_sizes:
            if num == last - first and first // size == (last - 1) // size:
                return first % size_below == 0 and last % size_below == 0
            size_below = size
        return False


def _check(topology: Topology) -> None:
    if not topology.levels:
        raise TopologyInvalid("a topology needs at least one level of devices; for one device say Level(1)")
    for number, level in enumerate(topology.levels, start=1):
        if level.count < 1:
            raise TopologyInvalid(f"level {number} joins {level.count} components; it needs at least 1")
        if not level.bandwidth > 0:
            raise TopologyInvalid(f"level {number} has a bandwidth of {level.bandwidth} B/s; it must be above 0")
        if not (math.isfinite(level.latency_s) and level.latency_s >= 0):
            raise TopologyInvalid(f"level {number} has a latency of {level.latency_s} s; it must be at least 0")
    if topology.num_devices > _MOST_DEVICES:
        raise TopologyInvalid(
            f"the levels have more than {_MOST_DEVICES} devices together; a topology has at most those"
        )
    if not 1 <= len(topology.kinds) <= 4:
        raise TopologyInvalid(f"a topology has 1 to 4 kinds of devices, not {len(topology.kinds)}")
    for kind in topology.kinds:
        if not (math.isfinite(kind.speed) and kind.speed > 0):
            raise TopologyInvalid(f"kind {kind.name!r} has a speed of {kind.speed}; it must be above 0")
        if kind.memory_bytes is not None and kind.memory_bytes < 1:
            raise TopologyInvalid(f"kind {kind.name!r} has {kind.memory_bytes} bytes of memory; it needs at least 1")
    if topology.kind_of and len(topology.kind_of) != topology.num_devices:
        raise TopologyInvalid(
            f"kind_of names {len(topology.kind_of)} devices but the levels have {topology.num_devices}; name each one"
        )
    for kind in topology.kind_of:
        if not 0 <= kind < len(topology.kinds):
            raise TopologyInvalid(f"kind_of names kind {kind}, but there are kinds 0 to {len(topology.kinds) - 1}")
