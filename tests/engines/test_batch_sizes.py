"""Jobs are as large as most hosts of a cluster allow, and sizes are described in the words of users."""

from __future__ import annotations

import pytest

from ropewalk.engines.batch_sizes import (
    BatchHost,
    best_share,
    describe,
    describe_request,
    hours_and_minutes,
)
from ropewalk.engines.resources import HostCapacity, Resources


def host(cpus: int, memory_mib: int | None = None, gpus: int = 0) -> BatchHost:
    return BatchHost("n", HostCapacity(cpus, gpus, None if memory_mib is None else memory_mib << 20), True)


def test_one_large_host_among_many_does_not_decide_the_size_of_jobs() -> None:
    assert best_share([host(4)] * 100 + [host(128)], Resources()) == 4
    assert best_share([host(4)] + [host(128)] * 2, Resources()) == 128
    assert best_share([host(8)] * 3, Resources()) == 8
    assert best_share([host(8)], Resources(cpus=9)) == 0
    assert best_share([], Resources()) == 0


def test_what_hosts_have_is_said_in_words() -> None:
    assert describe([host(1)]) == "1 CPU, no GPU"
    assert describe([host(8, 2000, 1), host(16, 1000)]) == "16 CPUs, 2000 MiB of memory, 1 GPU"


def test_a_request_is_described_as_clusters_take_it_in_whole_cpus_and_mebibytes() -> None:
    assert describe_request(Resources(cpus=1.5, gpus=1, memory=(1 << 20) + 1)) == "2 CPUs, 2 MiB of memory, 1 GPU"


@pytest.mark.parametrize(("seconds", "text"), [(0.1, "0:01"), (60, "0:01"), (61, "0:02"), (90_000, "25:00")])
def test_time_limits_are_rounded_up_to_minutes(seconds: float, text: str) -> None:
    assert hours_and_minutes(seconds) == text
