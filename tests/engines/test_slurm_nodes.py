"""What nodes have is read from sinfo, and how much fits on them is computed before anything is asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.engines.batch_sizes import best_share
from ropewalk.engines.resources import Resources
from ropewalk.engines.slurm_nodes import (
    SlurmNode,
    expand_names,
    most_jobs,
    read_sinfo,
    read_time,
    write_time,
)

SINFO = """\
n1|main*|10.0.0.1|64|515000|mixed|up|1-00:00:00|NO|a100,nvlink|gpu:a100:4(S:0-1),nvme:1
n1|debug|10.0.0.1|64|515000|mixed|up|30:00|FORCE:4|a100,nvlink|gpu:a100:4(S:0-1),nvme:1
n2|main*|node2.cluster|128+|1|idle~|up|1-00:00:00|NO|(null)|(null)
n3|main*|10.0.0.3|64|515000|allocated*|up|1-00:00:00|NO|a100|gpu:4,gpu:h100:2
n4|old|10.0.0.4|8|16000|idle|inact|infinite|EXCLUSIVE||gpu:2
sinfo: a warning that is no node
"""


def node(cpus: int, memory_mib: int | None = None, gpus: int = 0, jobs_per_cpu: int = 1) -> SlurmNode:
    return SlurmNode(
        "n", "main", True, "10.0.0.1", cpus, memory_mib, gpus, "idle", True, None, jobs_per_cpu, frozenset()
    )


def test_nodes_are_read_with_all_that_they_have() -> None:
    n1, debug, n2, n3, n4 = read_sinfo(SINFO)
    assert (n1.name, n1.partition, n1.is_default, n1.cpus, n1.gpus) == ("n1", "main", True, 64, 4)
    assert n1.features == {"a100", "nvlink"}
    assert (debug.partition, debug.is_default, debug.time_limit_s) == ("debug", False, 1800)
    assert (n2.cpus, n2.memory_mib, n2.address) == (128, None, "node2.cluster"), "1 MiB means that nobody said"
    assert n3.gpus == 6
    assert [node.is_usable for node in (n1, n2, n3, n4)] == [True, True, False, False]
    assert [node.jobs_per_cpu for node in (n1, debug, n4)] == [1, 4, 0]
    assert n4.time_limit_s is None and n4.features == set()


def test_gpus_of_another_type_do_not_count() -> None:
    assert [node.gpus for node in read_sinfo(SINFO, "a100")] == [4, 4, 0, 0, 0]
    assert [node.gpus for node in read_sinfo(SINFO, "h100")] == [0, 0, 0, 2, 0]


@pytest.mark.parametrize(
    ("each", "fits"),
    [
        (Resources(cpus=1), 16),
        (Resources(cpus=0.5), 32),
        (Resources(cpus=3), 5),
        (Resources(cpus=1, gpus=1), 2),
        (Resources(cpus=1, memory="1000Mi"), 4),
        (Resources(cpus=17), 0),
        (Resources(cpus=1, gpus=3), 0),
    ],
)
def test_the_scarcest_thing_decides_how_many_fit(each: Resources, fits: int) -> None:
    assert node(16, 4000, 2).room.holds(each) == fits


def test_memory_that_a_cluster_does_not_tell_is_no_limit() -> None:
    assert node(16).room.holds(Resources(memory="100G")) == 16


@given(st.lists(st.integers(1, 64), min_size=1, max_size=8), st.integers(1, 8))
def test_jobs_are_as_large_as_three_quarters_of_the_cluster_allow(sizes: list[int], cpus: int) -> None:
    nodes, process = [node(size) for size in sizes], Resources(cpus=cpus)
    share = best_share(nodes, process)

    def hosted(share: int) -> int:
        return share * most_jobs(nodes, Resources(cpus=share * cpus)) if share else 0

    assert hosted(share) >= 0.75 * hosted(1)
    assert all(hosted(larger) < 0.75 * hosted(1) for larger in range(share + 1, 65)) or hosted(1) == 0


def test_exclusive_jobs_have_one_node_each() -> None:
    assert most_jobs([node(8), node(2), node(1)], Resources(cpus=2)) == 5
    assert most_jobs([node(8), node(2), node(1)], Resources(cpus=2), is_exclusive=True) == 2
    assert most_jobs([node(8, jobs_per_cpu=0), node(8, jobs_per_cpu=3)], Resources(cpus=2)) == 1 + 12


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("10:30", 630),
        ("2:00:00", 7200),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("1-00:00:01", 86401),
        ("infinite", None),
        ("UNLIMITED", None),
        ("n/a", None),
    ],
)
def test_times_of_slurm_are_read(text: str, seconds: float | None) -> None:
    assert read_time(text) == seconds


@pytest.mark.parametrize("text", ["2h", "1:2:3:4", "-1", "now"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a time is written"):
        read_time(text)


@given(st.floats(0.001, 1e7))
def test_a_time_that_is_written_is_never_shorter_and_at_most_a_minute_longer(seconds: float) -> None:
    read = read_time(write_time(seconds))
    assert read is not None
    assert seconds <= read < seconds + 60


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,12],login", ["n08", "n09", "n10", "n12", "login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("a, b", ["a", "b"]),
    ],
)
def test_lists_of_names_are_expanded(text: str, names: list[str]) -> None:
    assert expand_names(text) == names
