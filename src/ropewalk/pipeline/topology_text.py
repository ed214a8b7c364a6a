"""Topologies as people write them: `4x8@12GBps,1.25GBps`, or a TOML file.

Levels are listed from the inside out: `4x8` is 4 devices in a server and 8 servers.
"""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec

from ropewalk.errors import TopologyInvalid
from ropewalk.pipeline.topology import DeviceKind, Level, Topology
from ropewalk.quantities import counted, parse_memory

_BANDWIDTH = re.compile(r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+)\s*(?:([kMGT]?)(B|b|bit)(?:ps|/s))?", re.ASCII)
_FACTORS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SLOWEST = 1000.0
"""Bytes per second below which a text is taken to lack its unit."""
_COUNTS = re.compile(r"\d+(?:x\d+)*", re.ASCII)
_LONGEST_COUNTS = 100
"""Characters. `int` refuses very many digits, with another error."""
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


def parse_bandwidth(text: str | float) -> float:
    """Read a bandwidth in bytes per second.

    Args:
        text: "12GBps", "12GB/s", "100Gbps" (bits), "12e9" or a number of bytes per second; "free" means no limit.

    Returns:
        Bytes per second; `inf` for "free".

    Raises:
        TopologyInvalid: `text` is not a bandwidth, or not above 0.
    """
    if isinstance(text, str):
        words = text.strip()
        match = _BANDWIDTH.fullmatch(words)
        if words == "free":
            return math.inf
        if match is None:
            raise TopologyInvalid(
                f'a bandwidth looks like "12GBps", "100Gbps" (bits) or 12e9 (bytes per second), not {text!r}'
            )
        number, factor, unit = match.groups()
        bandwidth = float(number) * _FACTORS[factor or ""] / (8 if unit in ("b", "bit") else 1)
    else:
        try:
            bandwidth = float(text)
        except OverflowError:
            raise TopologyInvalid(
                'a bandwidth is a number of bytes per second up to 1e308; say "free" for no limit'
            ) from None
    if not bandwidth > 0:
        raise TopologyInvalid(f"a bandwidth must be above 0 bytes per second, not {text!r}")
    if isinstance(text, str) and bandwidth < _SLOWEST:
        raise TopologyInvalid(f'{text!r} is {bandwidth:g} bytes per second; was "{text.strip()}GBps" meant?')
    return bandwidth


def parse_counts(text: str) -> tuple[int, ...]:
    """Read the counts of levels: "4x8" is (4, 8), for 4 devices per server and 8 servers.

    Raises:
        TopologyInvalid: `text` has another form or is very long, or a count is 0.
    """
    words = text.strip()
    if not _COUNTS.fullmatch(words):
        raise TopologyInvalid(f'devices look like "4" or "4x8" (4 per server, 8 servers), not {text!r}')
    if len(words) > _LONGEST_COUNTS:
        raise TopologyInvalid(f"{words[:10]}... are too many devices; a topology has at most a million")
    counts = tuple(int(count) for count in words.split("x"))
    if 0 in counts:
        raise TopologyInvalid(f"{text!r} has no devices: every count must be at least 1")
    return counts


def parse_topology(text: str, *, memory_bytes: int | None = None) -> Topology:
    """Read "4", "4x8" (free links) or "4x8@12GBps,1.25GBps", from the inside out.

    Args:
        text: the counts and, after `@`, a bandwidth for each.
        memory_bytes: memory of each device, in bytes; None: not limited.

    Raises:
        TopologyInvalid: `text` cannot be read, or has more counts than bandwidths or fewer.
    """
    counts_text, at, bandwidths_text = text.partition("@")
    counts = parse_counts(counts_text)
    bandwidths = [parse_bandwidth(part) for part in bandwidths_text.split(",")] if at else [math.inf] * len(counts)
    if len(bandwidths) != len(counts):
        raise TopologyInvalid(
            f"{text!r} has {len(counts)} levels of devices and {len(bandwidths)} bandwidths; give one for each level, "
            f"from the inside out"
        )
    levels = tuple(Level(count, bandwidth) for count, bandwidth in zip(counts, bandwidths, strict=True))
    return Topology(levels, (DeviceKind(memory_bytes=memory_bytes),))


class _Level(msgspec.Struct, forbid_unknown_fields=True):
    count: int
    bandwidth: str | float = "free"
    latency_s: float = 0.0


class _DeviceSection(msgspec.Struct, forbid_unknown_fields=True):
    name: str = "device"
    speed: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    memory: str | int | None = None
    devices: str = ""


class _TopologyFile(msgspec.Struct, forbid_unknown_fields=True):
    levels: list[_Level]
    kinds: list[_DeviceSection] = []  # msgspec copies the default


def load_topology(path: str | Path) -> Topology:
    """Read a topology from a TOML file, with levels listed from the inside out.

        # cluster.toml: two servers of four; the second has slower devices
        levels = [
            { count = 4, bandwidth = "12GBps", latency_s = 5e-6 },
            { count = 2, bandwidth = "10Gbps" },
        ]
        [[kinds]]
        name = "a100"
        memory = "80GB"
        devices = "0-3"
        [[kinds]]
        name = "v100"
        speed = 0.4
        memory = "16GB"
        devices = "4-7"

    Args:
        path: path of the file.

    Raises:
        TopologyInvalid: the file does not exist or is not a topology; the message says where.
    """
    try:
        found = msgspec.convert(tomllib.loads(Path(path).read_text(encoding="utf-8")), _TopologyFile)
        levels = tuple(Level(level.count, parse_bandwidth(level.bandwidth), level.latency_s) for level in found.levels)
        kinds = tuple(
            DeviceKind(kind.name, kind.speed, None if kind.memory is None else parse_memory(kind.memory))
            for kind in found.kinds
        )
        topology = Topology(levels, kinds or (DeviceKind(),))
        return Topology(levels, topology.kinds, _kind_of(found.kinds, topology.num_devices))
    except OSError as error:
        raise TopologyInvalid(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise TopologyInvalid(f"{path} is not a topology: {error}") from error


def _kind_of(kinds: list[_DeviceSection], num_devices: int) -> tuple[int, ...]:
    """The index of each device's kind; empty if there is one kind, which names no devices."""
    if len(kinds) <= 1 and not any(kind.devices for kind in kinds):
        return ()
    of: dict[int, int] = {}
    for index, kind in enumerate(kinds):
        for part in kind.devices.split(","):
            match = _RANGE.fullmatch(part.strip())
            if match is None:
                raise TopologyInvalid(
                    f'kind {kind.name!r} needs devices such as "0-3" or "0-3,8", not {kind.devices!r}'
                )
            first, last = int(match[1]), int(match[2] or match[1])
            for device in range(first, last + 1):
                if device >= num_devices or device in of:
                    why = "has another kind already" if device in of else f"does not exist; there are {num_devices}"
                    raise TopologyInvalid(f"kind {kind.name!r} names device {device}, which {why}")
                of[device] = index
    if missing := sorted(set(range(num_devices)) - set(of)):
        raise TopologyInvalid(f"no kind names device {missing[0]}; {len(missing)} of {num_devices} have none")
    return tuple(of[device] for device in range(num_devices))


def describe_topology(topology: Topology) -> str:
    """Describe a topology in words: "4 per server x 8 servers, 12 GB/s, 1.25 GB/s"."""
    counts = [level.count for level in topology.levels]
    names = ["server", "rack", "row", "hall"]
    if len(counts) == 1:
        what = counted(counts[0], "device")
    else:
        parts = [f"{counts[0]} per {names[0]}"]
        for index, count in enumerate(counts[1:-1], start=1):
            parts.append(f"{count} {names[index - 1]}s per {names[min(index, 3)]}")
        what = " x ".join([*parts, f"{counts[-1]} {names[min(len(counts) - 2, 3)]}s"])
    speeds = ", ".join(shown_bandwidth(level.bandwidth) for level in topology.levels)
    kinds = "" if len(topology.kinds) == 1 else f"; {len(topology.kinds)} kinds of devices"
    return f"{what}, {speeds}{kinds}"


def shown_bandwidth(bandwidth: float) -> str:
    """Return bytes per second with a unit: "12 GB/s"; "free links" for `inf`."""
    if math.isinf(bandwidth):
        return "free links"
    for factor, unit in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if bandwidth >= factor:
            return f"{bandwidth / factor:.4g} {unit}"
    return f"{bandwidth:.4g} B/s"
