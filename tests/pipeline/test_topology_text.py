"""Topologies as people write them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ropewalk.errors import TopologyInvalid
from ropewalk.pipeline.topology import DeviceKind, Level, Topology
from ropewalk.pipeline.topology_text import describe_topology, load_topology, parse_bandwidth, parse_topology


@pytest.mark.parametrize(
    ("text", "bandwidth"),
    [
        ("12GBps", 12e9), ("1.25GB/s", 1.25e9), ("100Gbps", 12.5e9), ("10 Gbit/s", 1.25e9), ("12e9", 12e9),
        ("500MBps", 5e8), (3e9, 3e9), ("1000", 1e3), ("free", math.inf),
    ],
)  # fmt: skip
def test_bandwidths_are_read_as_bytes_per_second(text: str | float, bandwidth: float) -> None:
    assert parse_bandwidth(text) == bandwidth


def test_a_topology_reads_from_the_inside_out() -> None:
    topology = parse_topology("4x8@12GBps,1.25GBps", memory_bytes=16)
    assert topology == Topology((Level(4, 12e9), Level(8, 1.25e9)), (DeviceKind(memory_bytes=16),))
    assert topology.num_devices == 32
    assert topology.level_between(0, 3).bandwidth == 12e9
    assert topology.level_between(3, 4).bandwidth == 1.25e9
    assert describe_topology(topology) == "4 per server x 8 servers, 12 GB/s, 1.25 GB/s"


@pytest.mark.parametrize(
    ("devices", "nests"),
    [((0, 1), True), ((1, 2, 3), True), ((3, 4), False), (tuple(range(8)), True), (tuple(range(4, 12)), True),
     (tuple(range(2, 8)), False), ((0, 2), False), ((5,), True)],
)  # fmt: skip
def test_a_stage_lies_inside_a_component_or_uses_whole_ones(devices: tuple[int, ...], nests: bool) -> None:
    assert parse_topology("4x3").nests(devices) is nests


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 'devices look like "4" or "4x8"'),
        ("4x", 'devices look like "4" or "4x8"'),
        ("0", "has no devices"),
        ("4x0", "has no devices"),
        ("4@0GBps", "above 0 bytes per second, not '0GBps'"),
        ("4x8@1GBps", "2 levels of devices and 1 bandwidths"),
        ("4@fast", 'looks like "12GBps"'),
    ],
)
def test_what_is_no_topology_is_answered_with_what_one_looks_like(text: str, words: str) -> None:
    with pytest.raises(TopologyInvalid) as caught:
        parse_topology(text)
    assert words in str(caught.value)


FILE = """
levels = [{ count = 2, bandwidth = "12GBps", latency_s = 5e-6 }, { count = 2, bandwidth = "10Gbps" }]
[[kinds]]
name = "a100"
memory = "80GB"
devices = "0-1"
[[kinds]]
name = "v100"
speed = 0.4
devices = "2, 3"
"""


@pytest.mark.parametrize("text", ["9" * 5000, "4x" + "9" * 5000, "1001x1000", "9" * 20, "9" * 99])
def test_very_many_devices_are_refused(text: str) -> None:
    # Some ended in a ValueError of `int`, others in an OverflowError of the planner.
    with pytest.raises(TopologyInvalid, match="a topology has at most") as raised:
        parse_topology(text)
    assert len(str(raised.value)) < 200


def test_a_million_devices_are_accepted() -> None:
    assert parse_topology("1000x1000").num_devices == 1_000_000


def test_a_bandwidth_without_a_float_is_refused() -> None:
    with pytest.raises(TopologyInvalid, match="up to 1e308"):
        parse_bandwidth(10**400)


def test_a_file_gives_kinds_and_latencies(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(FILE)
    assert load_topology(tmp_path / "cluster.toml") == Topology(
        (Level(2, 12e9, 5e-6), Level(2, 1.25e9)),
        (DeviceKind("a100", 1.0, 80 * 10**9), DeviceKind("v100", 0.4)),
        (0, 0, 1, 1),
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"0-1"', '"0-2"', "names device 2, which has another kind already"),
        ('"2, 3"', '"2"', "no kind names device 3"),
        ('"2, 3"', '"2-9"', "names device 4, which does not exist; there are 4"),
        ("speed", "sped", "unknown field `sped`"),
        ("0.4", "0", "Expected `float` > 0"),
        ("count = 2,", "count = 0,", "it needs at least 1"),
        ("levels", "[levels", "cluster.toml is not a topology"),
    ],
)
def test_a_file_that_cannot_be_says_where(tmp_path: Path, old: str, new: str, words: str) -> None:
    (tmp_path / "cluster.toml").write_text(FILE.replace(old, new, 1))
    with pytest.raises(TopologyInvalid) as caught:
        load_topology(tmp_path / "cluster.toml")
    assert words in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TopologyInvalid, match="No such file"):
        load_topology(tmp_path / "cluster.toml")
