"""`probe` describes this machine."""

from __future__ import annotations

import math

import psutil
import pytest

from ropewalk.engines.resources import usable_cpus
from ropewalk.errors import TopologyInvalid
from ropewalk.pipeline.probing import probe


def test_each_core_is_a_device_with_its_share_of_the_memory() -> None:
    said: list[str] = []
    topology = probe(device="cpu", report=said.append)
    assert topology.num_devices == usable_cpus()
    share = topology.kind(0).memory_bytes
    assert share is not None and share * topology.num_devices <= psutil.virtual_memory().total
    (level,) = topology.levels
    # A copy takes more than nothing and less than a minute; a message less than a second.
    assert 1e6 < level.bandwidth < math.inf
    assert 0 < level.latency_s < 1
    cores, copies = said
    assert cores.startswith(f"{usable_cpus()} cores") and "shared memory" in copies


def test_an_unknown_device_is_refused_by_name() -> None:
    with pytest.raises(TopologyInvalid, match="'tpu'"):
        probe(device="tpu")


def test_a_missing_accelerator_is_an_error() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(TopologyInvalid, match="no CUDA device"):
        probe(device="cuda")
